"""`berth quota`."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.quota.ledger import budgets
from portal.quota.limits.services import limits
from portal.workspaces.lifecycle import State
from tests.factories import TeamFactory, WorkspaceFactory


@pytest.fixture
def vision(as_bob, bob, team, pool):
    """vision may use 4 H100 and 64 GiB; bob uses 1.5 H100."""
    limits.set_quota(actor=SYSTEM, team=team, resource="gpu:h100", quota=4000)
    limits.set_quota(actor=SYSTEM, team=team, resource="memory_mib", quota=65_536)
    limits.set_member_cap(actor=SYSTEM, team=team, resource="gpu:h100", amount=2000)
    WorkspaceFactory(owner=bob, team=team, state=State.RUNNING, pool=pool, amounts={"gpu:h100": 1500})
    return team


def test_table_uses_display_units(as_bob, vision):
    ran = as_bob("quota")
    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[1] == ["vision", "H100", "1.5", "4", "4", "0", "0", "1.5", "2"]
    amounts = ["0 GiB", "64 GiB", "64 GiB", "0 GiB", "0 GiB", "0 GiB", "-"]
    assert " ".join(lines[2]) == " ".join(["vision", "Memory", *amounts])


def test_json_uses_base_units(as_bob, vision):
    ran = as_bob("quota", "vision", "--json")
    row = ran.json["resources"][0]
    assert (row["resource"], row["used"], row["quota"], row["cap"]) == ("gpu:h100", 1500, 4000, 2000)
    assert [each["team"] for each in as_bob("quota", "--json").json] == ["vision"]


def test_team_without_quota_is_reported_as_unlimited(as_bob):
    ran = as_bob("quota")
    assert ran.code == 0 and ran.out == "" and "is not limited" in ran.err


def test_another_team_is_not_found(as_bob):
    TeamFactory(slug="secret")
    ran = as_bob("quota", "secret")
    assert ran.code == 5 and "Team “secret” not found" in ran.err


def test_budgets_are_shown_in_the_currency(as_bob, vision):
    assert "No budgets" in as_bob("budget").err
    budgets.set_budget(actor=SYSTEM, team=vision, amount_cents=120_050)
    ran = as_bob("budget")
    assert "0.00 EUR" in ran.out and "1200.50 EUR" in ran.out and "owners notified" in ran.out
    assert [each["team"] for each in as_bob("budget", "vision", "--json").json] == ["vision"]
    assert as_bob("budget", "audio", "--json").json == []
