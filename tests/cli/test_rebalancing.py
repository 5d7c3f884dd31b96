"""`berth rebalancing` and `berth efficiency`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from portal.fleet.inventory.models import Device
from portal.reclaim.models import RebalanceProposal
from portal.workspaces.lifecycle import State
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    WorkspaceFactory,
    local_pool_with,
    make_token,
    node_info,
)
from tests.reports.test_gpu_use import hold, measured


@pytest.fixture
def proposal(bob, team):
    """A proposal to move bob's workspace, which no longer runs as it did."""
    workspace, now = WorkspaceFactory(owner=bob, team=team, name="train"), timezone.now()
    places = [{"nodes": [{"node": node, "devices": [], "repartitions": []}]} for node in ("gpu-07", "gpu-08")]
    move = {"workspace": str(workspace.pk), "generation": 7, "pool": str(workspace.pk)}
    return RebalanceProposal.objects.create(
        key="k",
        moves=[{**move, "source": places[0], "target": places[1]}],
        reason={"code": "moves_make_room", "params": {"milli": 1000, "moves": 1}},
        gain=1000,
        proposed_at=now,
        seen_at=now,
    )


def test_proposals_are_listed_and_one_is_applied(as_bob, olga, proposal, monkeypatch):
    assert as_bob("rebalancing").code == 1, "a member has listed them"
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    listed = as_bob("rebalancing")
    assert listed.code == 0, listed.err
    head, row = listed.out.splitlines()
    assert head.split()[:2] == ["ID", "STATE"]
    assert row.startswith(str(proposal.pk)[:8]) and "train gpu-07 → gpu-08" in row
    (read,) = as_bob("rebalancing", "--json").json
    assert read["id"] == str(proposal.pk)
    # It asks for confirmation; the portal refuses outdated proposals.
    asked = as_bob("rebalancing", "apply", str(proposal.pk)[:8])
    assert asked.code == 2 and "--yes" in asked.err
    refused = as_bob("rebalancing", "apply", str(proposal.pk)[:8], "--yes")
    assert refused.code != 0 and refused.err.startswith("berth: ")
    proposal.refresh_from_db()
    assert proposal.state == "open"
    missing = as_bob("rebalancing", "apply", "nothing", "--yes")
    assert missing.code == 5 and "berth rebalancing" in missing.err
    RebalanceProposal.objects.update(state="withdrawn")
    assert as_bob("rebalancing").err == "No proposals.\n"
    assert "withdrawn" in as_bob("rebalancing", "--all").out


def test_applied_moves_are_printed(as_bob, olga, proposal, monkeypatch):
    monkeypatch.setenv("BERTH_TOKEN", make_token(olga)[1])
    monkeypatch.setattr("portal.reclaim.rebalancing.services.moving.request_moves", lambda **_: None)
    applied = as_bob("rebalancing", "apply", str(proposal.pk), "--yes")
    assert (applied.code, applied.out) == (0, "train gpu-07 → gpu-08: move started, users notified.\n")
    proposal.refresh_from_db()
    assert (proposal.state, proposal.decided_by) == ("applied", "olga")


def test_members_see_their_gpu_efficiency(as_bob, bob, team, monkeypatch):
    assert as_bob("efficiency").err == "You have no running workspaces.\n"
    dan = MembershipFactory(team=team, user__username="dan").user
    pool = local_pool_with(node_info(gpus=1))
    running = {"team": team, "pool": pool, "state": State.RUNNING, "generation": 1}
    idle = WorkspaceFactory(owner=bob, name="idle", flavor=FlavorFactory(accelerator_count=1), **running)
    WorkspaceFactory(owner=bob, name="plain", flavor=FlavorFactory(), **running)
    WorkspaceFactory(owner=dan, name="other", flavor=FlavorFactory(), **running)
    gpu = Device.objects.get(node__pool=pool)
    hold(idle, gpu, 0, None)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    idle.allocations.update(granted_at=now - timedelta(hours=10))
    for hour in range(-10, 0):
        measured(gpu, hour, percent=0, day=now)
    found = as_bob("efficiency")
    assert found.code == 0, found.err
    head, *rows, hint = found.out.splitlines()
    assert head.split() == ["WORKSPACE", "TEAM", "GPU", "TIME", "USED", "MEASURED"]
    shown = {row.split()[0]: row.split()[2:] for row in rows}
    # The current hour is not measured yet.
    assert shown["idle"][:2] == ["0", "%"] and shown["plain"] == ["-", "-"] and len(shown) == 2
    assert hint.startswith("idle: ")
    (one,) = as_bob("efficiency", "idle", "--json").json
    assert (one["name"], one["used"], one["hint"]["reason"]["code"]) == ("idle", 0.0, "no_gpu_used")
    assert as_bob("efficiency", "nothing").code == 5
    monkeypatch.setenv("BERTH_TOKEN", make_token(dan)[1])
    assert as_bob("efficiency", str(idle.pk)).code == 5
