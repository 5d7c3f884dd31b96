"""Member shares: the member of a team with the least usage is first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.common.reasons.reason import Reason
from portal.quota.limits.shares import decay_average, weighted_use
from portal.quota.limits.types import Cohort, Limit, Team
from portal.scheduling.engine.codes import MemberOrderCode
from portal.scheduling.engine.cycle import OWN_RULES
from portal.scheduling.engine.model import Policy, Running, Snapshot, Workload
from portal.scheduling.engine.outlook import Outlook
from portal.scheduling.engine.scheduler import Scheduler, schedule
from tests.scheduling.engine.worlds import sites
from tests.suite.choice import examples

GPU = "gpu:a"
HOUR, DAY = 3600, 86400
FEW = settings(max_examples=examples(150), deadline=None, derandomize=True)
TEAM = Team("vision", member_shares=True)


def ask(name: str, user: str, *, made_s: int = 0, lasts_s: int = 2 * HOUR, gpus: int = 1, **more) -> Workload:
    amounts = more.pop("amounts", {GPU: 1000 * gpus})
    return Workload(name, "vision", amounts, user=user, created_s=made_s, duration_s=lasts_s, **more)


def site(*queued: Workload, now_s: int = HOUR, team: Team = TEAM, gpus: int = 4, running=(), **more):
    return Scheduler(
        Snapshot(
            now_s, (team,), (), tuple(running), queued, capacity={GPU: 1000 * gpus},
            policy=Policy(preemption=False), **more,
        )
    )  # fmt: skip


def order(scheduler: Scheduler) -> list[str]:
    """Return the queue, read in every way."""
    pending, usage = scheduler.pending, scheduler.usage
    found = [workload.id for workload in pending.pick(usage, set())]
    places = pending.positions(usage)
    assert sorted(places, key=places.__getitem__) == found
    assert [pending.position(name, usage) for name in found] == list(range(1, len(found) + 1))
    return found


def twenty_requests_of_ann() -> list[Workload]:
    return [ask(f"ann{number:02}", "ann") for number in range(20)]


def test_member_with_less_usage_precedes_twenty_earlier_requests():
    scheduler = site(*twenty_requests_of_ann(), now_s=0)
    scheduler.apply(scheduler.cycle(0), 0)
    assert len(scheduler.running) == 4
    scheduler.submit(ask("bob", "bob", made_s=60))
    assert order(scheduler)[:2] == ["bob", "ann04"]
    scheduler.finish("ann00")
    assert scheduler.cycle(2 * HOUR).starts == ("bob",)


def test_requests_are_ordered_by_age_without_member_shares():
    queued = [*twenty_requests_of_ann(), ask("bob", "bob", made_s=60)]
    assert order(site(*queued, team=replace(TEAM, member_shares=False)))[-1] == "bob"


def test_starts_of_one_cycle_alternate():
    queued = [*twenty_requests_of_ann(), *(ask(f"bob{number}", "bob", made_s=60) for number in range(5))]
    assert site(*queued).cycle(HOUR).starts == ("ann00", "bob0", "ann01", "bob1")


def test_plan_alternates_members_like_cycles():
    queued = [*twenty_requests_of_ann(), *(ask(f"bob{number}", "bob", made_s=60) for number in range(5))]
    scheduler = site(*queued)
    scheduler.apply(scheduler.cycle(HOUR), HOUR)
    plan = Outlook(scheduler).plan
    starts = {name: round((eta.eta_s - HOUR) / HOUR) for name, eta in plan.etas().items()}
    assert [name for name, hours in starts.items() if hours == 2] == ["ann02", "bob2", "ann03", "bob3"]
    assert starts["bob4"] == 4


def test_recent_and_current_usage_are_added():
    queued = (ask("a", "ann"), ask("b", "bob", made_s=60), ask("c", "cem", made_s=120))
    running = (Running(ask("r", "ann", gpus=2), 0),)
    team = replace(TEAM, member_avg={"ann": 500, "bob": 3000, "cem": 2400})
    assert order(site(*queued, team=team, running=running)) == ["c", "a", "b"]


def test_priority_nominations_and_long_waits_precede_member_shares():
    team = replace(TEAM, member_avg={"ann": 9000})
    queued = (
        ask("usual", "bob", made_s=8 * DAY),
        ask("urgent", "ann", made_s=8 * DAY, priority=1),
        ask("reserved", "ann", made_s=8 * DAY, backfill_seq=1),
        ask("old", "ann", made_s=0),
        ask("nominated", "ann", made_s=8 * DAY, nominated=True),
    )
    scheduler = site(*queued, team=team, now_s=8 * DAY)
    scheduler.pending.promote(DAY)
    assert order(scheduler) == ["nominated", "old", "urgent", "usual", "reserved"]


def test_usage_counts_accelerators_by_rate_and_sixteen_cores_as_one():
    assert weighted_use({GPU: 2000, "cpu_milli": 16000, "memory_mib": 9}, {}) == 3000
    assert weighted_use({GPU: 2000, "mig:1g.10gb": 1000, "gpu": 2000}, {"mig:1g.10gb": 140}) == 2140
    ann, bob = Running(ask("r", "ann"), 0), Running(ask("s", "bob", amounts={"gpu:b": 1000}), 0)
    queued = (ask("a", "ann"), ask("b", "bob", made_s=60))
    assert order(site(*queued, running=(ann, bob))) == ["a", "b"]
    assert order(site(*queued, running=(ann, bob), rates_milli={"gpu:b": 500})) == ["b", "a"]


def test_order_change_is_reported_to_both_members():
    team = replace(TEAM, member_avg={"ann": 9000})
    queued = (ask("a", "ann"), ask("b", "bob", made_s=60), ask("c", "cem", made_s=120))
    blocked = Running(ask("r", "dan", gpus=4), 0)
    outlook = Outlook(site(*queued, team=team, running=(blocked,)))
    assert outlook.member_order_of("a") == Reason(MemberOrderCode.USED_MORE, {"member": "cem"})
    assert outlook.member_order_of("b") == Reason(MemberOrderCode.USED_LESS, {"member": "ann"})
    assert outlook.member_order_of("c") == Reason(MemberOrderCode.USED_LESS, {"member": "ann"})
    alone = Outlook(site(queued[0], team=team, running=(blocked,)))
    assert alone.member_order_of("a") is None


def test_request_that_does_not_fit_does_not_block_other_members():
    queued = (ask("a", "ann", gpus=3), ask("b", "bob", made_s=60, gpus=3), ask("c", "cem", made_s=120))
    team = replace(TEAM, member_avg={"cem": 1}, limits={GPU: Limit(2000)}, cohort="")
    assert site(*queued, team=team).cycle(HOUR).starts == ("c",)


@FEW
@given(sites(reservations=True, queued=12))
def test_member_turns_keep_the_positions_of_the_team(snapshot):
    """Other teams neither gain nor lose a position."""
    without = replace(snapshot, teams=tuple(replace(team, member_shares=False) for team in snapshot.teams))
    queues = []
    for world in (snapshot, without):
        scheduler = Scheduler(world)
        queued = scheduler.pending.pick(scheduler.usage, set())
        queues.append([(workload.team, workload.priority) for workload in queued])
    assert queues[0] == queues[1]


@FEW
@given(sites(reservations=True, queued=12))
def test_single_member_is_not_delayed_by_member_turns(snapshot):
    """Neither behind other teams nor for its own usage."""
    queued = tuple(replace(workload, user=workload.team) for workload in snapshot.queued)
    teams = tuple(replace(team, member_avg={team.name: 9}) for team in snapshot.teams)
    alone = replace(snapshot, queued=queued, teams=teams)
    without = replace(alone, teams=tuple(replace(team, member_shares=False) for team in teams))
    assert schedule(alone) == schedule(without)


@FEW
@given(sites(preemption=False, queued=12))
def test_reserved_start_passes_only_to_a_team_member_with_less_usage(snapshot):
    scheduler = Scheduler(snapshot)
    cycle = scheduler.cycle(scheduler.now_s)
    scheduler.apply(cycle, scheduler.now_s)
    after = {head.workload: head.start_s for head in scheduler.cycle(scheduler.now_s).backfill_reservations}
    usage, places = scheduler.usage, scheduler.pending.positions(scheduler.usage)
    for head in cycle.backfill_reservations[:1]:
        request = scheduler.pending.items[head.workload]
        colleagues = [
            other
            for other in scheduler.pending.items.values()
            if (other.team, other.priority) == (request.team, request.priority)
            and other.user != request.user
            and places[other.id] < places[request.id]
        ]
        share = usage.member_share(request.team, request.user)
        assert all(usage.member_share(other.team, other.user) <= share for other in colleagues)
        shortfall = usage.shortfall(request, scheduler.now_s)
        own_limit = shortfall is not None and shortfall[0] in OWN_RULES
        if not own_limit and not (colleagues and usage.teams[request.team].member_shares):
            assert after[head.workload] <= head.start_s


@st.composite
def backlogs(draw):
    members = draw(st.integers(2, 4))
    gpus = draw(st.integers(2, 6))
    queued = []
    for member in range(members):
        made_s = draw(st.integers(0, 2)) * HOUR
        for number in range(draw(st.integers(1, 12))):
            lasts_s = draw(st.integers(1, 4)) * HOUR // 2
            queued.append(ask(f"{member}-{number:02}", str(member), made_s=made_s, lasts_s=lasts_s))
    return gpus, members, queued


@FEW
@given(backlogs())
def test_member_gets_at_least_half_its_share(backlog):
    """A backlogged member has at least half of an equal share once running work has ended."""
    gpus, members, queued = backlog
    scheduler = site(gpus=gpus, now_s=0)
    arriving = sorted(queued, key=lambda workload: workload.created_s)
    averages: dict[str, int] = {}
    last_start: dict[str, int] = {}
    step_s, now_s = HOUR // 2, 0
    while arriving or len(scheduler.pending):
        while arriving and arriving[0].created_s <= now_s:
            scheduler.submit(arriving.pop(0))
        for name, run in list(scheduler.running.items()):
            if run.ends_s <= now_s:
                scheduler.finish(name)
        cycle = scheduler.cycle(now_s)
        for name in cycle.starts:
            last_start[scheduler.pending.items[name].user] = now_s
        scheduler.apply(cycle, now_s)
        used: dict[str, int] = {}
        for run in scheduler.running.values():
            used[run.workload.user] = used.get(run.workload.user, 0) + 1000
        averages = decay_average(averages, used, step_s, DAY)
        scheduler.usage.set_team(replace(TEAM, member_avg=averages))
        now_s += step_s
    longest_s = max(workload.duration_s for workload in queued)
    for member, start_s in last_start.items():
        own = [workload for workload in queued if workload.user == member]
        alone_s = sum(workload.duration_s for workload in own) * members // gpus
        assert start_s - own[0].created_s <= 2 * alone_s + longest_s


def test_member_turns_do_not_affect_other_teams():
    """Bob precedes Ann of his own team, but not earlier requests of another team."""
    teams = (replace(TEAM, cohort="c"), Team("audio", "c"))
    ann = [ask(f"ann{number}", "ann") for number in range(2)]
    other = [replace(ask(f"eve{number}", "eve", made_s=30), team="audio") for number in range(2)]
    queued = (*ann, *other, ask("bob", "bob", made_s=60))
    running = (Running(ask("r", "ann"), 0),)
    scheduler = Scheduler(Snapshot(60, teams, (Cohort("c"),), running, queued, capacity={GPU: 1000}))
    assert order(scheduler) == ["bob", "ann0", "eve0", "eve1", "ann1"]
