"""Which workloads to preempt so that a request can start: Kueue's fair-sharing rules, cohorts in cohorts.

A request may take from its own team what has a lower priority, and from its cohort what others have
borrowed of what is short. Who stays within its own of that takes it back. For others taking from the cohort
is allowed where the taker's share afterwards is at most what the other's will be, or, where that does not
suffice, once for each team, less than what the other's was. Both make the largest share smaller or equal,
so at one moment it comes to rest. Over time shares move: so between borrowers what both held of late counts
too, who had to leave is protected for longer each time, and does not take from other borrowers itself.
What began within the minimum run, or has not begun yet, makes no borrower of a team: nothing older of it,
which ran within its quota, leaves in its place. Who would lose its work leaves for another team only where
that gains more than it costs, or where an owner is far enough before it by the order of the queue.
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
_Place = tuple[int, bool, tuple[bool | int | str, ...]]
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
    """By how much the others that wait are held up in all, if the victims' work has to be done again.

    Each of those that ask for the resource waits for what is lost over the capacity of the site.
    """
    return min(
        (
            lost * (pending.asking(name) - 1) // usage.capacity[name]
            for name, lost in _lost_work(incoming, victims, resource, now_s).items()
            if usage.capacity.get(name)
        ),
        default=0,
    )


def _lost_work(incoming: Workload, victims: Iterable[Running], resource: str, now_s: int) -> dict[str, int]:
    """Amounts times seconds that are lost of what is short; of all that is asked where that is not known."""
    lost = [each for each in victims if each.workload.loses_work]
    names = [resource] if incoming.amounts.get(resource) else list(incoming.amounts)
    return {
        name: sum(each.workload.amounts.get(name, 0) * (now_s - each.started_s) for each in lost)
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
    """The running workloads that have to leave for `incoming`, or nothing where that would not help.

    `fits` may add a condition on what is left, such as a place on a node: it is given the usage and the
    ids that would be gone. `unsettled` names what counts in the usage without having begun yet: it makes
    nobody a borrower who has to give back. The usage is as before when this returns.
    """
    shortfall = usage.shortfall(incoming, now_s)
    if shortfall is None or shortfall[0] is Rule.LEDGER:
        return ()
    lacking = usage.lacking(incoming, now_s)
    if lacking and fits is not None and not fits(usage, ()):
        # Where the nodes have no place either, whoever holds anything of what is asked may make it.
        lacking = frozenset(name for name, amount in incoming.amounts.items() if amount > 0)
    search = _Search(usage, incoming, now_s, policy, fits, lacking)
    search.collect(running, unsettled)
    return search.run()


class _Search:
    """One search for victims. The usage is changed on the way, and as before afterwards."""

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
        self._capped = usage.over_cap(incoming)
        self._own = usage.tree.teams[incoming.team]
        self._path = self._own.path()
        usage.add(incoming)
        # As in Kueue, who stays within its own of what is short takes it back whatever else it borrows.
        self._owns = not exceeds_nominal(usage, incoming.team, lacking)
        usage.remove(incoming)
        self._candidates: dict[str, list[Running]] = {}
        self._unsettled: dict[str, dict[str, int]] = {}
        self._retry: dict[str, list[Running]] = {}
        self._taken: list[tuple[Running, PreemptionCode]] = []

    def collect(self, running: Callable[[str], Iterable[Running]], unsettled: Iterable[Workload]) -> None:
        """Those that may be taken at all, by team, in the order in which they are taken (the last first)."""
        for workload in unsettled:
            self._leave_out(workload)
        # A borrower that had to leave itself does not come back at the cost of another: no taking in turns.
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
            # Lowest priority first, then the one that began last, which loses least.
            members.sort(key=_leaves_before, reverse=True)

    def _collect_from(self, team: str, own: bool, running: Iterable[Running]) -> None:
        found = []
        for each in running:
            other = each.workload
            if each.preempt_at_s is not None:
                continue
            age_s = self.now_s - each.started_s
            if not own and age_s < self.policy.min_run_s:
                self._leave_out(other)
            if not other.preemptible or age_s < protected_s(other, self.policy):
                continue
            if not own and not self._worth_it(each):
                continue
            names = self._lacking
            if own:
                if other.priority >= self.incoming.priority:
                    continue
                if other.user == self.incoming.user:
                    names = names | self._capped
            if any(other.amounts.get(name, 0) > 0 for name in names):
                found.append(each)
        if found:
            self._candidates[team] = found

    def _worth_it(self, each: Running) -> bool:
        """Whether what is gained makes up for work that is lost, where the taker is of another team.

        Between borrowers the rest of the run has to be longer than what is lost and the taker's own run. An
        owner gets back what is its own also for longer, in the measure in which the order of the queue puts
        it before the borrower: by the delay of the borrower's share, and for as long as it has waited.
        """
        if not each.workload.loses_work:
            return True
        age_s, rest_s = self.now_s - each.started_s, each.ends_s - self.now_s
        if rest_s <= 0:
            # Durations have long tails: what has outrun its expectation goes on for as long as it has run.
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
        ahead_ms = usage.delay_ms(each.workload.team) - usage.delay_ms(self.incoming.team)
        return self.policy.due_after * excess_s <= waited_s + max(0, ahead_ms) // 1000

    def _leave_out(self, workload: Workload) -> None:
        """It is not counted where its team is judged as a borrower who has to give back."""
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
            found = self._first_strategy() or self._second_strategy()
            if found:
                self._give_back()
        finally:
            self._count_unsettled(1)
            for each, _ in taken:
                usage.add(each.workload)
            usage.remove(self.incoming)
        if not found:
            return ()
        return tuple(
            Victim(each.workload.id, each.workload.team, reason, self.incoming.id) for each, reason in taken
        )

    def _count_unsettled(self, sign: int) -> None:
        tree = self.usage.tree
        for team, amounts in self._unsettled.items():
            (tree.add if sign > 0 else tree.remove)(team, amounts)

    def _enough(self) -> bool:
        """Whether the request fits once those taken have left."""
        # The request itself counts in the usage while victims are sought, what is unsettled does not.
        usage = self.usage
        usage.remove(self.incoming)
        self._count_unsettled(1)
        fit = usage.shortfall(self.incoming, self.now_s) is None and (
            self._fits is None or self._fits(usage, [each.workload.id for each, _ in self._taken])
        )
        self._count_unsettled(-1)
        usage.add(self.incoming)
        return fit

    def _take(self, each: Running, reason: PreemptionCode) -> bool:
        self.usage.remove(each.workload)
        self._taken.append((each, reason))
        return self._enough()

    def _first_strategy(self) -> bool:
        """The taker's share afterwards is at most the other's without the victim; an owner may anyhow."""
        candidates = self._candidates
        while (team := self._largest(candidates)) is not None:
            members = candidates[team]
            if team == self.incoming.team or self._owns:
                own = team == self.incoming.team
                if self._take(members.pop(), PreemptionCode.IN_TEAM if own else PreemptionCode.RECLAIM):
                    return True
                continue
            mine = self._mine(team)
            while members:
                each = members.pop()
                if mine <= self._theirs_without(each) and self._lasts(each):
                    if self._take(each, PreemptionCode.FAIR_SHARE):
                        return True
                    break
                self._retry.setdefault(team, [each])
        return False

    def _second_strategy(self) -> bool:
        """The taker's share afterwards is less than the other's before; once for each team, as in Kueue."""
        while (team := self._largest(self._retry)) is not None:
            (each,) = self._retry.pop(team)
            if (
                self._mine(team) < dominant_share(self._theirs(team))
                and self._lasts(each)
                and self._take(each, PreemptionCode.FAIR_SHARE)
            ):
                return True
        return False

    def _largest(self, candidates: dict[str, list[Running]]) -> str | None:
        """The team that gives next: from the root on the child with the largest share.

        Of equal ones a cohort comes before a team, and of teams the one whose next is taken first.
        Cohorts and teams that borrow nothing have nothing to give, but for the taker's own.
        """
        best: tuple[tuple[_Place, ...], str] | None = None
        for team in list(candidates):
            members = candidates[team]
            place = self._place(team, members[-1]) if members else None
            if place is None:
                del candidates[team]
            elif best is None or place < best[0]:
                best = (place, team)
        return best[1] if best else None

    def _place(self, team: str, following: Running) -> tuple[_Place, ...] | None:
        node = self.usage.tree.teams[team]
        path = node.path()[:-1]
        if not path:
            return ()
        place: list[_Place] = []
        for each in reversed(path[1:]):
            share = dominant_share(each)
            if not share and each not in self._path and not borrows_any(each):
                return None
            place.append((-share, False, (each.name,)))
        share = dominant_share(node)
        if not share and node is not self._own and not borrows_any(node):
            return None
        place.append((-share, True, (node is self._own, *_leaves_before(following))))
        return tuple(place)

    def _mine(self, team: str) -> int:
        """The taker's share beside the team's, just below their common cohort; all that it has counts."""
        mine, _ = _below_common(self._own, self.usage.tree.teams[team])
        if mine is self._own or not self._unsettled:
            return dominant_share(mine)
        self._count_unsettled(1)
        share = dominant_share(mine)
        self._count_unsettled(-1)
        return share

    def _theirs(self, team: str) -> Node:
        return _below_common(self._own, self.usage.tree.teams[team])[1]

    def _theirs_without(self, other: Running) -> int:
        theirs = self._theirs(other.workload.team)
        self.usage.remove(other.workload)
        share = dominant_share(theirs)
        self.usage.add(other.workload)
        return share

    def _lasts(self, other: Running) -> bool:
        """Between borrowers the imbalance has to be one of the last days too, not of this moment alone."""
        mine, theirs = _below_common(self._own, self.usage.tree.teams[other.workload.team])
        my_avg, their_avg = _averages(self.usage, mine), _averages(self.usage, theirs)
        return dominant_share(mine, my_avg) <= dominant_share(theirs, their_avg)

    def _give_back(self) -> None:
        """Spare whom it would have been unnecessary to take, looking from the last but one backwards."""
        for index in range(len(self._taken) - 2, -1, -1):
            spared = self._taken.pop(index)
            self.usage.add(spared[0].workload)
            if not self._enough():
                self.usage.remove(spared[0].workload)
                self._taken.insert(index, spared)


def _leaves_before(each: Running) -> tuple[int, int, str]:
    return (each.workload.priority, -each.started_s, each.workload.id)


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
