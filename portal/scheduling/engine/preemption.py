"""Which workloads to preempt so that a request can start: Kueue's fair-sharing rules, cohorts in cohorts.

A request may take from its own team what has a lower priority, and from its cohort what others have
borrowed. Taking from the cohort is allowed where the taker's share afterwards is at most what the
other's will be, or, where that does not suffice, less than what the other's was. Both make the largest
share smaller or equal, so at one moment it comes to rest. Over time shares move: so between borrowers
what both held of late counts too, who had to leave is protected for longer each time, and does not take
from other borrowers itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from portal.common.reasons.codes import PreemptionCode, Rule
from portal.quotas.shares import dominant_share
from portal.quotas.tree import Node
from portal.scheduling.engine.model import Policy, Running, Victim, Workload
from portal.scheduling.engine.usage import Usage, borrows, within_nominal

Fits = Callable[[Usage, Sequence[str]], bool]
MAX_DOUBLINGS = 12
"""So often at most does protection from preemption grow, by a factor of four each time."""


def protected_s(workload: Workload, policy: Policy) -> int:
    """How long it runs before it may be asked to leave: four times as long after each time it had to.

    So the work that is lost to preemption stays a part of what is done, and nobody has to leave more
    than a handful of times: soon the protection is longer than the run.
    """
    if workload.preempted <= 0:
        return policy.min_run_s
    return max(policy.min_run_s, policy.grace_s) << 2 * min(workload.preempted, MAX_DOUBLINGS)


def lost_time_s(incoming: Workload, victims: Iterable[Running], resource: str, now_s: int) -> int:
    """For how long the request could have run on what the victims have used in vain, if they leave now.

    `resource` is the one that is short; where that is not known, the one that makes least of it counts.
    """
    lost = [each for each in victims if each.workload.loses_work]
    if not lost:
        return 0
    names = [resource] if incoming.amounts.get(resource) else list(incoming.amounts)
    times = [
        sum(each.workload.amounts.get(name, 0) * (now_s - each.started_s) for each in lost) // amount
        for name in names
        if (amount := incoming.amounts[name]) > 0
    ]
    return min(times, default=0)


def find_victims(
    usage: Usage,
    incoming: Workload,
    running: Callable[[str], Iterable[Running]],
    now_s: int,
    policy: Policy,
    fits: Fits | None = None,
) -> tuple[Victim, ...]:
    """The running workloads that have to leave for `incoming`, or nothing where that would not help.

    `fits` may add a condition on what is left, such as a place on a node: it is given the usage and the
    ids that would be gone. The usage is as before when this returns.
    """

    def enough(gone: Sequence[str]) -> bool:
        # The incoming request counts in the usage while victims are sought.
        usage.remove(incoming)
        fit = usage.shortfall(incoming, now_s) is None and (fits is None or fits(usage, gone))
        usage.add(incoming)
        return fit

    shortfall = usage.shortfall(incoming, now_s)
    if shortfall is None or shortfall[0] is Rule.LEDGER:
        return ()
    needed = [name for name, amount in incoming.amounts.items() if amount > 0]
    owns = within_nominal(usage, incoming)
    # A borrower that had to leave itself does not come back at the cost of another: no taking in turns.
    in_team_only = shortfall[0] in (Rule.TEAM_LIMIT, Rule.USER_CAP) or (incoming.preempted > 0 and not owns)
    candidates = _candidates(usage, incoming, running, now_s, policy, needed, in_team_only)
    if not candidates:
        return ()
    taken: list[tuple[Running, PreemptionCode]] = []
    usage.add(incoming)
    try:
        found = _first_pass(usage, incoming, candidates, enough, owns, taken)
        if found:
            _give_back(usage, enough, taken)
    finally:
        for each, _ in taken:
            usage.add(each.workload)
        usage.remove(incoming)
    if not found:
        return ()
    return tuple(Victim(each.workload.id, each.workload.team, reason, incoming.id) for each, reason in taken)


def _candidates(
    usage: Usage,
    incoming: Workload,
    running: Callable[[str], Iterable[Running]],
    now_s: int,
    policy: Policy,
    needed: Sequence[str],
    in_team_only: bool,
) -> dict[str, list[Running]]:
    """Those that may be taken at all, by team, in the order in which they are taken (the last first)."""
    reclaims = usage.teams[incoming.team].reclaim and not in_team_only
    root = usage.tree.teams[incoming.team].path()[-1]
    found: dict[str, list[Running]] = {}
    for team, node in usage.tree.teams.items():
        own = team == incoming.team
        if not own and not (reclaims and node.path()[-1] is root and borrows(usage, team, needed)):
            continue
        for each in running(team):
            other = each.workload
            if not other.preemptible or each.preempt_at_s is not None:
                continue
            if now_s - each.started_s < protected_s(other, policy):
                continue
            if own and other.priority >= incoming.priority:
                continue
            if any(other.amounts.get(name, 0) > 0 for name in needed):
                found.setdefault(team, []).append(each)
    for members in found.values():
        # Lowest priority first, then the one that began last, which loses least.
        members.sort(
            key=lambda each: (each.workload.priority, -each.started_s, each.workload.id), reverse=True
        )
    return found


def _first_pass(
    usage: Usage,
    incoming: Workload,
    candidates: dict[str, list[Running]],
    enough: Callable[[Sequence[str]], bool],
    owns: bool,
    taken: list[tuple[Running, PreemptionCode]],
) -> bool:
    """Take by the first rule, then by the second. True when it is enough."""

    def take(each: Running, reason: PreemptionCode) -> bool:
        usage.remove(each.workload)
        taken.append((each, reason))
        return enough([one.workload.id for one, _ in taken])

    def lasts(each: Running) -> bool:
        # Between borrowers the imbalance has to be one of the last days too, not of this moment alone.
        mine, initial, _ = _shares(usage, incoming.team, each, lasting=True)
        return mine <= initial

    cohort_reason = PreemptionCode.RECLAIM if owns else PreemptionCode.FAIR_SHARE
    retry: dict[str, list[Running]] = {}
    while (team := _largest(usage, incoming.team, candidates)) is not None:
        if team == incoming.team:
            if take(candidates[team].pop(), PreemptionCode.IN_TEAM):
                return True
            continue
        while candidates[team]:
            each = candidates[team].pop()
            mine, _, final = _shares(usage, incoming.team, each)
            if mine <= final and (owns or lasts(each)):
                if take(each, cohort_reason):
                    return True
                break
            retry.setdefault(team, []).insert(0, each)
    while (team := _largest(usage, incoming.team, retry)) is not None:
        each = retry[team].pop()
        mine, initial, _ = _shares(usage, incoming.team, each)
        if mine < initial and (owns or lasts(each)) and take(each, cohort_reason):
            return True
    return False


def _largest(usage: Usage, own: str, candidates: dict[str, list[Running]]) -> str | None:
    """The team with the largest share among those that have someone to take; only borrowers and one's own."""
    best: tuple[tuple[int, ...], bool, str] | None = None
    for team in sorted(candidates):
        if not candidates[team]:
            continue
        node = usage.tree.teams[team]
        share = tuple(dominant_share(each) for each in reversed(node.path()[:-1]))
        if team != own and not any(share):
            candidates[team].clear()
            continue
        rank = (share, team != own, team)
        if best is None or rank[:2] > best[:2]:
            best = rank
    return best[2] if best else None


def _shares(usage: Usage, own: str, other: Running, lasting: bool = False) -> tuple[int, int, int]:
    """The taker's share, and the other's before and after `other` left, just below their common cohort.

    With `lasting`, what both borrowed of late counts too.
    """
    mine, theirs = _below_common(usage.tree.teams[own], usage.tree.teams[other.workload.team])
    mine_avg, their_avg = (_averages(usage, mine), _averages(usage, theirs)) if lasting else (None, None)
    before = dominant_share(theirs, their_avg)
    usage.remove(other.workload)
    after = dominant_share(theirs, their_avg)
    taker = dominant_share(mine, mine_avg)
    usage.add(other.workload)
    return taker, before, after


def _averages(usage: Usage, node: Node) -> dict[str, int]:
    """What the teams under a node have borrowed of late."""
    if usage.tree.teams.get(node.name) is node:
        return dict(usage.teams[node.name].borrowed_avg)
    total: dict[str, int] = {}
    for child in node.children:
        for resource, amount in _averages(usage, child).items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _below_common(first: Node, second: Node) -> tuple[Node, Node]:
    one, two = first.path(), second.path()
    while len(one) > 1 and len(two) > 1 and one[-2] is two[-2]:
        one.pop()
        two.pop()
    return one[-2], two[-2]


def _give_back(
    usage: Usage, enough: Callable[[Sequence[str]], bool], taken: list[tuple[Running, PreemptionCode]]
) -> None:
    """Spare whom it would have been unnecessary to take, looking from the last but one backwards."""
    for index in range(len(taken) - 2, -1, -1):
        each, _ = taken[index]
        usage.add(each.workload)
        rest = [one.workload.id for place, (one, _) in enumerate(taken) if place != index]
        if enough(rest):
            del taken[index]
        else:
            usage.remove(each.workload)


def reservation_victims(usage: Usage, running: Collection[Running], now_s: int) -> list[Victim]:
    """Preemptible workloads that stand where a booking has begun. The usage stays as it was."""
    victims: list[Victim] = []
    removed: list[Workload] = []
    for reservation in usage.calendar.reservations:
        if not reservation.start_s <= now_s < reservation.end_s:
            continue
        for resource in reservation.amounts:
            if resource not in usage.capacity:
                continue
            others = sorted(
                (each for each in running if each.workload.team != reservation.team),
                key=lambda each: (
                    each.preempt_at_s is None,
                    each.workload.priority,
                    -each.started_s,
                    each.workload.id,
                ),
            )
            for each in others:
                kept = usage.calendar.peak(resource, now_s, now_s + 1, usage)
                if usage.used.get(resource, 0) + kept <= usage.capacity[resource]:
                    break
                other = each.workload
                if not other.preemptible or not other.amounts.get(resource) or other in removed:
                    continue
                if usage.calendar.peak(resource, now_s, now_s + 1, usage, other.team) == 0:
                    continue
                usage.remove(other)
                removed.append(other)
                if each.preempt_at_s is None:
                    victims.append(
                        Victim(other.id, other.team, PreemptionCode.RESERVATION_BEGUN, reservation.id)
                    )
    for other in removed:
        usage.add(other)
    return victims
