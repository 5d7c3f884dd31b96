"""Victim selection: which workloads to preempt so that a request can start (Kueue's fair sharing).

A request may preempt workloads of its own team that have a lower priority, and workloads of teams in its
cohort that borrow the scarce resource. A team within its nominal quota reclaims it. Other requests may
preempt in the cohort under one of two strategies:

- The share of the preempting team afterwards is at most the other team's share without the victim.
- Once per team, the share afterwards is less than the other team's share before.

Neither strategy increases the largest share, so repeated preemption converges. Because shares change over
time, the recent average of borrowed amounts is also compared between borrowers. A preempted workload is
protected for longer each time, and does not preempt other borrowers itself.

Workloads that have not started, or run for less than the minimum run, do not make a team a borrower.
Otherwise an older workload within quota would be preempted for them. A workload that would lose its work is
preempted for another team only if the gain exceeds the cost, or if an owner is far enough ahead in queue
order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from portal.common.reasons.codes import Rule
from portal.quota.limits.shares import dominant_share
from portal.quota.limits.tree import Node
from portal.scheduling.engine.model import Policy, PreemptionCode, Running, Victim, Workload
from portal.scheduling.engine.pending import PendingQueue
from portal.scheduling.engine.usage import Usage, borrows, borrows_any, exceeds_nominal

Fits = Callable[[Usage, Sequence[str]], bool]
_SortKey = tuple[int, bool, tuple[bool | int | str, ...]]
MAX_DOUBLINGS = 12
"""Maximum number of times that preemption protection grows, by a factor of four each time."""


def protected_s(workload: Workload, policy: Policy) -> int:
    """Return the run time in seconds during which the workload cannot be preempted.

    Protection grows by a factor of four with each preemption. This bounds the share of work lost to
    preemption: after a handful of preemptions the protection is longer than the run.
    """
    if workload.preempted <= 0:
        return policy.min_run_s
    return max(policy.min_run_s, policy.grace_s) << 2 * min(workload.preempted, MAX_DOUBLINGS)


def lost_time_s(incoming: Workload, victims: Iterable[Running], resource: str, now_s: int) -> int:
    """Return how long, in seconds, the request could have run on the work that the victims would lose.

    `resource` is the scarce resource. If it is unknown, the smallest result of all resources is returned.
    """
    return min(
        (
            lost // incoming.amounts[name]
            for name, lost in _lost_work(incoming, victims, resource, now_s).items()
        ),
        default=0,
    )


def delay_of_others_s(
    incoming: Workload,
    victims: Iterable[Running],
    resource: str,
    now_s: int,
    usage: Usage,
    pending: PendingQueue,
) -> int:
    """Return the total delay, in seconds, of other pending requests if the victims' work is repeated.

    Each pending request for the resource waits for the lost work divided by the capacity of the site.
    """
    return min(
        (
            lost * (pending.count_requesting(name) - 1) // usage.capacity[name]
            for name, lost in _lost_work(incoming, victims, resource, now_s).items()
            if usage.capacity.get(name)
        ),
        default=0,
    )


def _lost_work(incoming: Workload, victims: Iterable[Running], resource: str, now_s: int) -> dict[str, int]:
    """Return lost amounts times seconds of the scarce resource, or of all requested ones if it is unknown."""
    lost = [victim for victim in victims if victim.workload.loses_work]
    names = [resource] if incoming.amounts.get(resource) else list(incoming.amounts)
    return {
        name: sum(victim.workload.amounts.get(name, 0) * (now_s - victim.started_s) for victim in lost)
        for name in names
        if incoming.amounts[name] > 0
    }


def find_victims(
    usage: Usage,
    incoming: Workload,
    running: Callable[[str], Iterable[Running]],
    now_s: int,
    policy: Policy,
    fits: Fits | None = None,
    unsettled: Iterable[Workload] = (),
) -> tuple[Victim, ...]:
    """Return the running workloads to preempt for `incoming`; empty if preemption would not help.

    `fits` is a further condition on the remaining workloads, such as free capacity on a node. It gets the
    usage and the victims' ids. `unsettled` lists workloads that count in the usage but have not started; they
    do not make a team a borrower. The usage is unchanged on return.
    """
    shortfall = usage.shortfall(incoming, now_s)
    if shortfall is None or shortfall[0] is Rule.LEDGER:
        return ()
    lacking = usage.short_resources(incoming, now_s)
    if lacking and fits is not None and not fits(usage, ()):
        # The nodes have no free capacity, so every workload with a requested resource is a candidate.
        lacking = frozenset(name for name, amount in incoming.amounts.items() if amount > 0)
    search = _Search(usage, incoming, now_s, policy, fits, lacking)
    search.collect(running, unsettled)
    return search.run()


class _Search:
    """One search for victims. Changes the usage during the search and restores it afterwards."""

    def __init__(
        self,
        usage: Usage,
        incoming: Workload,
        now_s: int,
        policy: Policy,
        fits: Fits | None,
        lacking: frozenset[str],
    ) -> None:
        self.usage, self.incoming, self.now_s, self.policy = usage, incoming, now_s, policy
        self._fits = fits
        self._lacking = lacking
        self._capped = usage.capped_resources(incoming)
        self._own = usage.tree.teams[incoming.team]
        self._path = self._own.path()
        usage.add(incoming)
        # As in Kueue, a team within its nominal quota of the scarce resource reclaims it, even if it borrows
        # other resources.
        self._owns = not exceeds_nominal(usage, incoming.team, lacking)
        usage.remove(incoming)
        self._candidates: dict[str, list[Running]] = {}
        self._unsettled: dict[str, dict[str, int]] = {}
        self._retry: dict[str, list[Running]] = {}
        self._taken: list[tuple[Running, PreemptionCode]] = []

    def collect(self, running: Callable[[str], Iterable[Running]], unsettled: Iterable[Workload]) -> None:
        """Collect the preemptible workloads by team, sorted so that the next victim is last."""
        for workload in unsettled:
            self._exclude_from_usage(workload)
        # A preempted borrower does not preempt other borrowers: workloads must not preempt each other in
        # turn.
        may_reclaim = self.usage.teams[self.incoming.team].reclaim and (
            self.incoming.preempted <= 0 or self._owns
        )
        for team, node in self.usage.tree.teams.items():
            own = node is self._own
            if own or (
                may_reclaim and node.path()[-1] is self._path[-1] and borrows(self.usage, team, self._lacking)
            ):
                self._collect_from(team, own, running(team))
        for members in self._candidates.values():
            # The next victim has the lowest priority and then the latest start, because it loses the least
            # work.
            members.sort(key=_leaves_before, reverse=True)

    def _collect_from(self, team: str, own: bool, running: Iterable[Running]) -> None:
        candidates = []
        for candidate in running:
            other = candidate.workload
            if candidate.preempt_at_s is not None:
                continue
            age_s = self.now_s - candidate.started_s
            if not own and age_s < self.policy.min_run_s:
                self._exclude_from_usage(other)
            if not other.preemptible or age_s < protected_s(other, self.policy):
                continue
            if not own and not self._gain_exceeds_loss(candidate):
                continue
            names = self._lacking
            if own:
                if other.priority >= self.incoming.priority:
                    continue
                if other.user == self.incoming.user:
                    names = names | self._capped
            if any(other.amounts.get(name, 0) > 0 for name in names):
                candidates.append(candidate)
        if candidates:
            self._candidates[team] = candidates

    def _gain_exceeds_loss(self, candidate: Running) -> bool:
        """Return whether the gain exceeds the lost work, for a victim of another team.

        Between borrowers, the victim's remaining run must be longer than its lost work plus the incoming run.
        An owner may reclaim its quota for longer runs too, in proportion to its lead in queue order: the
        delay of the borrower's share, and its own waiting time.
        """
        if not candidate.workload.loses_work:
            return True
        age_s, rest_s = self.now_s - candidate.started_s, candidate.ends_s - self.now_s
        if rest_s <= 0:
            # Run times have long tails: a workload past its expected end is expected to run as long again.
            rest_s = age_s
        excess_s = age_s + self.incoming.duration_s - rest_s
        if excess_s < 0:
            return True
        if not self._owns:
            return False
        waited_s = self.now_s - self.incoming.created_s
        if waited_s >= self.policy.max_wait_s:
            return True
        usage = self.usage
        ahead_ms = usage.delay_ms(candidate.workload.team) - usage.delay_ms(self.incoming.team)
        return self.policy.due_after * excess_s <= waited_s + max(0, ahead_ms) // 1000

    def _exclude_from_usage(self, workload: Workload) -> None:
        """Exclude the workload from its team's usage while the team is judged as a borrower."""
        if workload.team == self.incoming.team:
            return
        total = self._unsettled.setdefault(workload.team, {})
        for name, amount in workload.amounts.items():
            total[name] = total.get(name, 0) + amount

    def run(self) -> tuple[Victim, ...]:
        usage, taken = self.usage, self._taken
        if not self._candidates:
            return ()
        usage.add(self.incoming)
        self._count_unsettled(-1)
        try:
            for team in list(self._candidates):
                if team != self.incoming.team and not borrows(usage, team, self._lacking):
                    del self._candidates[team]
            enough = self._first_strategy() or self._second_strategy()
            if enough:
                self._restore_unnecessary()
        finally:
            self._count_unsettled(1)
            for victim, _ in taken:
                usage.add(victim.workload)
            usage.remove(self.incoming)
        if not enough:
            return ()
        return tuple(
            Victim(victim.workload.id, victim.workload.team, reason, self.incoming.id)
            for victim, reason in taken
        )

    def _count_unsettled(self, sign: int) -> None:
        tree = self.usage.tree
        for team, amounts in self._unsettled.items():
            (tree.add if sign > 0 else tree.remove)(team, amounts)

    def _request_fits(self) -> bool:
        """Return whether the request fits once the chosen victims have left."""
        # During the search the usage includes the request and excludes unsettled workloads.
        usage = self.usage
        usage.remove(self.incoming)
        self._count_unsettled(1)
        fit = usage.shortfall(self.incoming, self.now_s) is None and (
            self._fits is None or self._fits(usage, [victim.workload.id for victim, _ in self._taken])
        )
        self._count_unsettled(-1)
        usage.add(self.incoming)
        return fit

    def _take(self, victim: Running, reason: PreemptionCode) -> bool:
        self.usage.remove(victim.workload)
        self._taken.append((victim, reason))
        return self._request_fits()

    def _first_strategy(self) -> bool:
        """Preempt if the incoming team's share is at most the other's without the victim.

        Owners preempt regardless of shares.
        """
        candidates = self._candidates
        while (team := self._largest(candidates)) is not None:
            members = candidates[team]
            if team == self.incoming.team or self._owns:
                own = team == self.incoming.team
                if self._take(members.pop(), PreemptionCode.IN_TEAM if own else PreemptionCode.RECLAIM):
                    return True
                continue
            mine = self._own_share(team)
            while members:
                candidate = members.pop()
                if mine <= self._other_share_without(candidate) and self._imbalance_lasts(candidate):
                    if self._take(candidate, PreemptionCode.FAIR_SHARE):
                        return True
                    break
                self._retry.setdefault(team, [candidate])
        return False

    def _second_strategy(self) -> bool:
        """Preempt, once per team, if the incoming team's share is less than the other's before."""
        while (team := self._largest(self._retry)) is not None:
            (candidate,) = self._retry.pop(team)
            if (
                self._own_share(team) < dominant_share(self._other_node(team))
                and self._imbalance_lasts(candidate)
                and self._take(candidate, PreemptionCode.FAIR_SHARE)
            ):
                return True
        return False

    def _largest(self, candidates: dict[str, list[Running]]) -> str | None:
        """Return the team to preempt next: from the root down, the child with the largest share.

        On a tie, cohorts come before teams, and teams are ordered by their next victim. Cohorts and teams
        that do not borrow are dropped, except on the incoming team's own path.
        """
        best: tuple[tuple[_SortKey, ...], str] | None = None
        for team in list(candidates):
            members = candidates[team]
            place = self._sort_key(team, members[-1]) if members else None
            if place is None:
                del candidates[team]
            elif best is None or place < best[0]:
                best = (place, team)
        return best[1] if best else None

    def _sort_key(self, team: str, following: Running) -> tuple[_SortKey, ...] | None:
        node = self.usage.tree.teams[team]
        path = node.path()[:-1]
        if not path:
            return ()
        place: list[_SortKey] = []
        for ancestor in reversed(path[1:]):
            share = dominant_share(ancestor)
            if not share and ancestor not in self._path and not borrows_any(ancestor):
                return None
            place.append((-share, False, (ancestor.name,)))
        share = dominant_share(node)
        if not share and node is not self._own and not borrows_any(node):
            return None
        place.append((-share, True, (node is self._own, *_leaves_before(following))))
        return tuple(place)

    def _own_share(self, team: str) -> int:
        """Return the incoming team's share below its common cohort with `team`, with unsettled workloads."""
        mine, _ = _below_common(self._own, self.usage.tree.teams[team])
        if mine is self._own or not self._unsettled:
            return dominant_share(mine)
        self._count_unsettled(1)
        share = dominant_share(mine)
        self._count_unsettled(-1)
        return share

    def _other_node(self, team: str) -> Node:
        return _below_common(self._own, self.usage.tree.teams[team])[1]

    def _other_share_without(self, other: Running) -> int:
        theirs = self._other_node(other.workload.team)
        self.usage.remove(other.workload)
        share = dominant_share(theirs)
        self.usage.add(other.workload)
        return share

    def _imbalance_lasts(self, other: Running) -> bool:
        """Return whether the imbalance between borrowers also exists in the average of the last few days."""
        mine, theirs = _below_common(self._own, self.usage.tree.teams[other.workload.team])
        my_avg, their_avg = _averages(self.usage, mine), _averages(self.usage, theirs)
        return dominant_share(mine, my_avg) <= dominant_share(theirs, their_avg)

    def _restore_unnecessary(self) -> None:
        """Remove victims that turn out to be unnecessary, from the last but one backwards."""
        for index in range(len(self._taken) - 2, -1, -1):
            restored = self._taken.pop(index)
            self.usage.add(restored[0].workload)
            if not self._request_fits():
                self.usage.remove(restored[0].workload)
                self._taken.insert(index, restored)


def _leaves_before(candidate: Running) -> tuple[int, int, str]:
    return (candidate.workload.priority, -candidate.started_s, candidate.workload.id)


def _averages(usage: Usage, node: Node) -> dict[str, int]:
    """Return the recent average of borrowed amounts of all teams under a node."""
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


def reservation_victims(usage: Usage, running: Collection[Running], now_s: int) -> list[Victim]:
    """Return preemptible workloads that occupy reserved capacity. The usage is unchanged on return."""
    victims: list[Victim] = []
    removed: list[Workload] = []
    for reservation in usage.calendar.reservations:
        if not reservation.start_s <= now_s < reservation.end_s:
            continue
        for resource in reservation.amounts:
            if resource not in usage.capacity:
                continue
            others = sorted(
                (candidate for candidate in running if candidate.workload.team != reservation.team),
                key=lambda candidate: (
                    candidate.preempt_at_s is None,
                    candidate.workload.priority,
                    -candidate.started_s,
                    candidate.workload.id,
                ),
            )
            for candidate in others:
                reserved = usage.calendar.peak(resource, now_s, now_s + 1, usage)
                if usage.used.get(resource, 0) + reserved <= usage.capacity[resource]:
                    break
                other = candidate.workload
                if not other.preemptible or not other.amounts.get(resource) or other in removed:
                    continue
                if usage.calendar.peak(resource, now_s, now_s + 1, usage, other.team) == 0:
                    continue
                usage.remove(other)
                removed.append(other)
                if candidate.preempt_at_s is None:
                    victims.append(
                        Victim(other.id, other.team, PreemptionCode.RESERVATION_BEGUN, reservation.id)
                    )
    for other in removed:
        usage.add(other)
    return victims
