"""Single decisions as shown to their owners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.codes import WaitBasis
from portal.scheduling.engine.model import (
    Outcome,
    Policy,
    PreemptionCode,
    Reservation,
    Running,
    Snapshot,
    Workload,
)
from portal.scheduling.engine.scheduler import Scheduler, schedule
from portal.scheduling.engine.verdicts import decide

GPU = "gpu:h100"
NOW = 1_800_000_000
TEAMS = (Team("vision", "c", {GPU: Limit(4000)}), Team("nlp", "c", {GPU: Limit(4000)}))


def ask(name: str, gpus: int, team: str = "nlp", **more) -> Workload:
    return Workload(name, team, {GPU: gpus * 1000}, **{"created_s": NOW, **more})


def site(*running: Running, **more) -> Snapshot:
    return Snapshot(NOW, TEAMS, (Cohort("c"),), running, **{"capacity": {GPU: 8000}, **more})


def running_work(name: str, gpus: int, team: str = "vision", started_s: int = NOW - 1800, **more) -> Running:
    return Running(ask(name, gpus, team, **more), started_s)


def test_blocked_request_names_its_holders_and_their_ends():
    assert decide(site(), ask("n", 4)).outcome is Outcome.FITS_NOW
    snapshot = site(running_work("v", 7, preemptible=False))
    verdict = decide(snapshot, ask("n", 2), alternatives=[ask("small", 1), ask("big", 3)])
    assert (verdict.outcome, verdict.position, verdict.eta_s) == (Outcome.QUEUED, 1, NOW + 1800)
    assert verdict.blocker.rule is Rule.COHORT
    assert [(each.team, each.amount, each.next_end_s) for each in verdict.blocker.holders] == [
        ("vision", 7000, NOW + 1800)
    ]
    assert verdict.basis == Reason(WaitBasis.EXPECTED_ENDS, {"running": 1})
    assert verdict.alternatives == ("small",)


def test_request_above_capacity_is_impossible_and_above_quota_needs_approval():
    assert decide(site(), ask("n", 9)).outcome is Outcome.IMPOSSIBLE
    alone = replace(site(), teams=(Team("nlp", "", {GPU: Limit(2000)}),))
    verdict = decide(alone, ask("n", 3))
    assert (verdict.outcome, verdict.blocker.rule) == (Outcome.NEEDS_APPROVAL, Rule.TEAM_LIMIT)
    assert (verdict.blocker.wanted, verdict.blocker.limit, verdict.blocker.resource) == (3000, 2000, GPU)
    unfunded = replace(site(), teams=(TEAMS[0], replace(TEAMS[1], funded=False)))
    assert decide(unfunded, ask("n", 1)).blocker.rule is Rule.LEDGER
    assert decide(unfunded, ask("n", 0)).outcome is Outcome.FITS_NOW


def test_member_cap_delays_only_that_member():
    teams = (TEAMS[0], replace(TEAMS[1], user_caps={GPU: 1000}))
    snapshot = replace(site(running_work("n", 1, "nlp", user="ann")), teams=teams)
    assert decide(snapshot, ask("x", 1, user="ann")).blocker.rule is Rule.USER_CAP
    assert decide(snapshot, ask("x", 1, user="bob")).outcome is Outcome.FITS_NOW


def test_owner_reclaims_and_capacity_is_reserved_until_victims_leave():
    scheduler = Scheduler(site(running_work("v1", 4), running_work("v2", 4, started_s=NOW - 1000)))
    scheduler.submit(ask("owner", 2))
    cycle = scheduler.cycle(NOW)
    assert [(each.workload, each.reason) for each in cycle.victims] == [("v2", PreemptionCode.RECLAIM)]
    scheduler.apply(cycle, NOW)
    assert scheduler.cycle(NOW + 1).victims == ()
    scheduler.submit(ask("thief", 2, created_s=NOW - 9999, priority=5))
    scheduler.finish("v2")
    assert scheduler.cycle(NOW + 60).starts[0] == "owner"


def test_recent_or_nonpreemptible_workloads_are_not_victims():
    young = site(running_work("v", 8, started_s=NOW - 10), queued=(ask("n", 2),))
    assert schedule(young).victims == ()
    fixed = site(running_work("v", 8, preemptible=False), queued=(ask("n", 2),))
    assert schedule(fixed).victims == ()
    assert schedule(site(running_work("v", 8), queued=(ask("n", 2),))).victims != ()


def test_only_short_requests_overtake_a_reserved_head():
    policy = Policy(preemption=False)
    queued = (
        ask("head", 8, priority=1),
        ask("long", 1, "vision", duration_s=7200),
        ask("short", 1, "vision", duration_s=60),
    )
    cycle = schedule(site(running_work("v", 4), queued=queued, policy=policy))
    assert [(head.workload, head.start_s) for head in cycle.backfill_reservations] == [("head", NOW + 1800)]
    assert cycle.starts == ("short",)
    assert cycle.backfilled == {"short"}


def test_reserved_capacity_is_lent_to_preemptible_work_only():
    booking = Reservation("b", "vision", {GPU: 8000}, NOW + 600, NOW + 4200)
    before = site(reservations=(booking,))
    fixed = decide(before, ask("n", 1, preemptible=False))
    assert (fixed.outcome, fixed.blocker.rule, fixed.eta_s) == (Outcome.QUEUED, Rule.BOOKING, NOW + 4200)
    assert decide(before, ask("n", 1)).outcome is Outcome.FITS_NOW
    assert decide(before, ask("n", 1, preemptible=False, duration_s=600)).outcome is Outcome.FITS_NOW
    begun = replace(site(running_work("n", 1, "nlp"), reservations=(booking,)), now_s=NOW + 600)
    assert [each.reason for each in schedule(begun).victims] == [PreemptionCode.RESERVATION_BEGUN]


class OneSlot:
    """Two GPUs per node: larger requests are never placed."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def fits(self, workload, excluded):
        return workload.amounts[GPU] <= 2000

    def take(self, workload):
        self.taken.append(workload.id)


def test_request_fitting_no_node_waits_with_the_reason():
    placer = OneSlot()
    verdict = decide(site(), ask("wide", 4), alternatives=[ask("narrow", 2)], placer=placer)
    assert (verdict.outcome, verdict.blocker.rule) == (Outcome.QUEUED, Rule.PLACEMENT)
    assert verdict.alternatives == ("narrow",)
    assert placer.taken == []


def test_overdue_request_precedes_a_higher_priority():
    queued = (ask("old", 8, created_s=NOW - 8 * 86400), ask("new", 8, priority=9))
    assert schedule(site(queued=queued)).starts == ("old",)


def test_requests_within_a_second_are_ordered_by_milliseconds():
    early = ask("z", 1, created_s=5, created_ms=1)
    late = ask("a", 1, created_s=5, created_ms=2)
    scheduler = Scheduler(replace(site(), queued=(late, early)))
    assert [each.id for each in scheduler.pending.pick(scheduler.usage, set())] == ["z", "a"]


@pytest.mark.parametrize(
    ("basis", "text"),
    [
        (Reason(WaitBasis.ENOUGH_FREE), "enough capacity is free"),
        (
            Reason(WaitBasis.EXPECTED_ENDS, {"running": 3}),
            "estimate, if 3 running workloads end on time",
        ),
        (
            Reason(WaitBasis.LIMIT_MUST_CHANGE, {"rule": "team_limit"}),
            "not before a limit changes (team_limit)",
        ),
        (
            Reason(PreemptionCode.RECLAIM),
            "the team that lent the quota needs it back",
        ),
    ],
    ids=lambda value: value.code.value if isinstance(value, Reason) else "",
)
def test_eta_basis_has_a_text(basis, text):
    assert message_of(basis) == text


class Models:
    """A placer that compares variants of a request and has capacity for none."""

    def fits(self, workload: Workload, excluded) -> bool:
        return False

    def take(self, workload: Workload) -> None:
        raise AssertionError("nothing fits")

    def choose(self, workload: Workload, ways, waiting) -> None:
        return None


def test_a_nomination_of_a_request_with_several_models_lapses():
    other = "gpu:a100"
    request = ask("n", 1, nominated=True, alternatives=({GPU: 1000}, {other: 1000}))
    snapshot = site(queued=(request,), capacity={GPU: 8000, other: 8000})
    assert schedule(snapshot, Models()).lapsed_nominations == ("n",)
