"""A small run of `bench.admission`: requests through the database, with separate and shared homes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.admission import stream
from portal.fleet.inventory.models import AllocatedDevice
from portal.scheduling import launches
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomePlace, Workspace
from tests.scheduling.test_bench_paths import DECISION, names, of_bench, recorded

pytestmark = pytest.mark.django_db
SAMPLE = Path(__file__).parent / "engine" / "placement" / "data"


@pytest.mark.parametrize("homes", ["apart", "shared"])
def test_requests_start_through_the_portals_own_cycle(homes, sent, monkeypatch):
    monkeypatch.setattr(stream, "PEOPLE", 200)
    nodes, _, requests = stream.read(SAMPLE, "sample", 1, 60)
    stream.build(nodes, homes=homes)
    with recorded() as calls:
        found = stream.through_database(requests, 30)
    assert found["requests"] == found["started"] == 60
    assert found["per_s"] > 0 and found["per_cpu_s"] > 0
    assert Workspace.objects.filter(state=State.PROVISIONING).count() == 60
    assert AllocatedDevice.objects.filter(active=True, milli__lt=1000).exists(), "shares are granted too"
    assert HomePlace.objects.count() == (60 if homes == "apart" else 0)
    assert names((*DECISION, launches.start_workspaces)) <= {name for name, _ in calls}
    timed = {getattr(of, name).__qualname__ for _, of, name in stream.PARTS}
    assert of_bench(calls) <= {"run", *timed}, "nothing is decided beside the cycle"
    stream.empty()
    assert not AllocatedDevice.objects.exists() and not HomePlace.objects.exists()
