"""Preemption as in Kueue: single cases, and random ones compared with a model of its algorithm."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.model import Policy, PreemptionCode, Running, Snapshot, Workload
from portal.scheduling.engine.preemption import find_victims
from portal.scheduling.engine.scheduler import schedule
from portal.scheduling.engine.usage import Usage
from tests.scheduling.engine.kueue_model import Info, Model, Node, Quota
from tests.scheduling.engine.kueue_worlds import decide, random_world
from tests.scheduling.engine.test_golden import KUEUE, milli

X, Y = "gpu:x", "gpu:y"
HOUR = 3600
CASES = 300
COHORTS = (Cohort("all"),)


def running_work(name: str, team: str, *, priority: int = 0, age_s: int = HOUR, **amounts: int) -> Running:
    return Running(
        Workload(name, team, _named(amounts), priority=priority, duration_s=100 * HOUR), started_s=-age_s
    )


def ask(name: str, team: str, *, priority: int = 0, duration_s: int = HOUR, **amounts: int) -> Workload:
    return Workload(name, team, _named(amounts), priority=priority, duration_s=duration_s)


def _named(amounts: dict[str, int]) -> dict[str, int]:
    return {f"gpu:{name}": amount for name, amount in amounts.items()}


def team(name: str, *, weight_milli: int = 1000, borrowing: int | None = None, **nominal: int) -> Team:
    limits = {resource: Limit(amount, borrowing) for resource, amount in _named(nominal).items()}
    return Team(name, "all", limits, weight_milli=weight_milli)


def victims(teams: tuple[Team, ...], running: tuple[Running, ...], *queued: Workload) -> dict[str, str]:
    """Return victims and their preemptors."""
    cycle = schedule(Snapshot(0, teams, COHORTS, running, queued))
    return {each.workload: each.beneficiary for each in cycle.victims}


@pytest.mark.parametrize("start", range(0, CASES, 50))
def test_random_sites_are_decided_like_the_kueue_model(start):
    """The same cases each time; `python -m bench.scheduling.kueue` runs any number."""
    decided = {seed: decide(random_world(seed)) for seed in range(start, start + 50)}
    assert {seed: each.difference for seed, each in decided.items() if each.difference} == {}


@pytest.mark.parametrize("case", KUEUE["cases"], ids=lambda case: case["name"])
def test_model_agrees_with_the_table_of_kueue(case):
    nodes = [(Node(KUEUE["base_cohort"], {}), "")]
    nodes += [
        (
            Node(name, {"cpu": Quota(cpu * 1000)}, Fraction(1), reclaim=name != "preemptible", is_queue=True),
            KUEUE["base_cohort"],
        )
        for name, cpu in KUEUE["base_nominal_cpu"].items()
    ]
    admitted = [
        Info(each["name"], each["cq"], {"cpu": milli(each["request_cpu"])}, each["priority"])
        for each in case["admitted"]
    ]
    asked = case["incoming"]
    incoming = Info(
        asked["name"], case["targetCQ"], {"cpu": milli(asked["request_cpu"])}, asked["priority"], 1
    )
    (found,) = Model(nodes, admitted).fair(incoming)
    expected = {(name, reason.removesuffix("Reason")) for name, reason in case["wantPreempted"]}
    assert json.dumps(sorted(found)) == json.dumps(sorted(expected))


def test_owner_reclaims_quota_even_while_borrowing_other_resources():
    """It borrows five of Y and has lent one of its three of X."""
    teams = (team("a", x=3, y=0), team("b", x=0, y=5))
    running = (running_work("mine", "a", x=2, y=5), running_work("theirs", "b", x=1))
    assert victims(teams, running, ask("new", "a", x=1)) == {"theirs": "new"}


def test_limit_of_a_team_does_not_stop_the_search_in_its_cohort():
    """The team may use four: lower priorities are preempted, and a borrower as well."""
    teams = (team("a", x=2, borrowing=2, weight_milli=3000), team("b", x=1), team("c", x=1))
    running = (running_work("low", "a", x=1), running_work("lent", "b", x=3))
    assert victims(teams, running, ask("new", "a", x=4, priority=1)) == {"low": "new", "lent": "new"}


def test_only_holders_of_the_short_resource_are_preempted():
    """X is short and belongs to a; borrowing of Y, which is free, does not matter."""
    teams = (team("a", x=2, y=0), team("b", x=0, y=0), team("c", x=0, y=4))
    running = (running_work("much", "b", y=2), running_work("little", "c", x=1))
    cycle = schedule(Snapshot(0, teams, COHORTS, running, (ask("new", "a", x=2, y=2),)))
    assert [(each.workload, each.reason) for each in cycle.victims] == [("little", PreemptionCode.RECLAIM)]


@pytest.mark.parametrize(("amount", "gives"), [(4, {"low", "b0"}), (5, set())])
def test_second_strategy_preempts_a_team_once(amount, gives):
    """Once a's own has left, its share is below b's: one of b's may be preempted for it, not two."""
    teams = (team("own", x=8), team("a", x=0, weight_milli=2000), team("b", x=0))
    running = tuple(running_work(f"b{number}", "b", x=1, age_s=HOUR + number) for number in range(4))
    running = (running_work("low", "a", x=3), running_work("owns", "own", x=1), *running)
    assert set(victims(teams, running, ask("new", "a", x=amount, priority=1))) == gives


def test_larger_of_two_borrowers_without_weight_is_preempted():
    teams = (team("own", x=5), team("b", x=0, weight_milli=0), team("c", x=0, weight_milli=0))
    running = (running_work("small", "b", x=1), running_work("large", "c", x=4))
    assert victims(teams, running, ask("new", "own", x=1)) == {"large": "new"}


def test_pending_start_does_not_count_as_borrowing():
    """t1 runs one, within its quota; its pending start is not counted."""
    teams = (team("t0", x=2), team("t1", x=1), team("t2", x=2))
    snapshot = Snapshot(0, teams, COHORTS, policy=Policy())
    old, promised, mine = running_work("old", "t1", x=1), ask("big", "t1", x=4), ask("mine", "t0", x=1)
    usage = Usage(snapshot)
    usage.add(old.workload)
    usage.add(promised)
    running = {"t1": (old,)}
    found = [
        find_victims(usage, mine, lambda name: running.get(name, ()), 0, snapshot.policy, unsettled=unsettled)
        for unsettled in ((), (promised,))
    ]
    assert [[each.workload for each in victims] for victims in found] == [["old"], []]


def test_nomination_in_the_same_cycle_does_not_count_as_borrowing():
    """t1 uses its own one and claims what t2 borrowed; then an owner requests one."""
    teams = (team("t0", x=2), team("t1", x=1, weight_milli=3000), team("t2", x=2))
    running = (running_work("old", "t1", x=1), running_work("lent", "t2", x=4))
    big, mine = ask("big", "t1", x=4, priority=1), ask("mine", "t0", x=1)
    assert set(victims(teams, running, big, mine)) == {"lent"}


def test_protected_new_start_does_not_expose_older_work_of_its_team():
    """While it is protected, an older workload of its team is not preempted instead."""
    teams = (team("t0", x=2), team("t1", x=1))
    for age_s, leaves in ((600, {}), (900, {"young": "mine"})):
        running = (running_work("old", "t1", x=1), running_work("young", "t1", x=2, age_s=age_s))
        assert victims(teams, running, ask("mine", "t0", x=1)) == leaves
