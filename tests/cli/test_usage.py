"""`berth usage`."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.workspaces.models import UsageMinute, Workspace
from tests.factories import WorkspaceFactory

pytestmark = pytest.mark.django_db


def test_usage_shows_mean_maximum_and_limit_of_measured_values(as_bob, bob, team, local_pool):
    workspace = WorkspaceFactory(owner=bob, team=team, name="train", pool=local_pool, state="running")
    unmeasured = as_bob("usage", "train")
    assert (unmeasured.code, unmeasured.out) == (0, "") and "Not measured" in unmeasured.err
    Workspace.objects.update(created_at=timezone.now() - timedelta(days=1))
    start_s = int(time.time()) // 60 * 60 - 900
    for minute, cpu_milli in enumerate((500, 1500)):
        UsageMinute.objects.create(
            workspace=workspace, start_s=start_s + 60 * minute, cpu_milli=cpu_milli, memory_mib=2048
        )
    head, *rows = as_bob("usage", "train", "--span", "hour").out.splitlines()
    assert head.split() == ["LATEST", "MEAN", "MAXIMUM", "LIMIT"]
    cores = workspace.resources["cpu_milli"] / 1000
    assert rows[0].split() == [
        "CPU",
        "1.50",
        "cores",
        "1.00",
        "cores",
        "1.50",
        "cores",
        f"{cores:.2f}",
        "cores",
    ]
    assert rows[1].split()[:3] == ["memory", "2.0", "GiB"]
    assert [row.split()[2:] for row in rows[2:]] == [["-"] * 4] * 2
    assert len(as_bob("usage", "train", "--span", "hour", "--json").json["points"]) == 2
