"""A small model of Kueue's preemption, written from its source and sharing nothing with the engine.

Read from kubernetes-sigs/kueue at ff69552e: `pkg/cache/scheduler` (`resource_node.go`: quota,
`fair_sharing.go`: dominant resource share), `pkg/scheduler/flavorassigner` (what needs preemption) and
`pkg/scheduler/preemption` (`preemption.go`, `fairsharing`; `classical` is in `kueue_classical`). Names
follow that source, feature gates stand at their defaults, and ratios are exact fractions where Kueue has
floating point.

Each ClusterQueue has one flavor, so a resource stands for a FlavorResource. `withinClusterQueue` is
`LowerPriority`, `borrowWithinCohort` is `Never`, `reclaimWithinCohort` is `Any` or `Never` by queue, and the
strategies are `LessThanOrEqualToFinalShare`, then `LessThanInitialShare`. No workload is evicted already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

IN_CLUSTER_QUEUE = "InClusterQueue"
RECLAMATION = "InCohortReclamation"
FAIR_SHARING = "InCohortFairSharing"


@dataclass(frozen=True)
class Quota:
    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True)
class Info:
    """A workload; `admitted_at` is when it reserved its quota."""

    uid: str
    queue: str
    requests: dict[str, int]
    priority: int = 0
    admitted_at: int = 0


@dataclass(eq=False)
class Node:
    """A ClusterQueue or a Cohort."""

    name: str
    quotas: dict[str, Quota]
    weight: Fraction = Fraction(1)
    reclaim: bool = True
    is_queue: bool = False
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    subtree_quota: dict[str, int] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    workloads: list[Info] = field(default_factory=list)

    def ancestors(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def root(self) -> Node:
        return [self, *self.ancestors()][-1]

    def queues(self) -> Iterator[Node]:
        for child in self.children:
            if child.is_queue:
                yield child
            else:
                yield from child.queues()

    # --- resource_node.go -----------------------------------------------------------------------------

    def accumulate(self) -> None:
        for child in self.children:
            child.accumulate()
        self.subtree_quota = {name: quota.nominal for name, quota in self.quotas.items()}
        for child in self.children:
            for name, quota in child.subtree_quota.items():
                self.subtree_quota[name] = self.subtree_quota.get(name, 0) + quota - child.local_quota(name)

    def quota(self, name: str) -> int:
        return self.subtree_quota.get(name, 0)

    def used(self, name: str) -> int:
        return self.usage.get(name, 0)

    def local_quota(self, name: str) -> int:
        lending = self.quotas.get(name, Quota()).lending_limit
        return 0 if lending is None else max(0, self.quota(name) - lending)

    def local_available(self, name: str) -> int:
        return max(0, self.local_quota(name) - self.used(name))

    def available(self, name: str) -> int:
        if self.parent is None:
            return self.quota(name) - self.used(name)
        from_parent = self.parent.available(name)
        limit = self.quotas.get(name, Quota()).borrowing_limit
        if limit is not None:
            local = self.local_quota(name)
            stored, in_use = self.quota(name) - local, max(0, self.used(name) - local)
            from_parent = min(stored - in_use + limit, from_parent)
        return self.local_available(name) + from_parent

    def potential_available(self, name: str) -> int:
        if self.parent is None:
            return self.quota(name)
        available = self.local_quota(name) + self.parent.potential_available(name)
        limit = self.quotas.get(name, Quota()).borrowing_limit
        return available if limit is None else min(self.quota(name) + limit, available)

    def add_usage(self, name: str, amount: int) -> None:
        local = self.local_available(name)
        self.usage[name] = self.used(name) + amount
        if self.parent is not None and amount > local:
            self.parent.add_usage(name, amount - local)

    def remove_usage(self, name: str, amount: int) -> None:
        in_parent = self.used(name) - self.local_quota(name)
        self.usage[name] = self.used(name) - amount
        if in_parent > 0 and self.parent is not None:
            self.parent.remove_usage(name, min(amount, in_parent))

    def borrowing_with(self, name: str, amount: int = 0) -> bool:
        return self.quota(name) < self.used(name) + amount

    def within_nominal_in(self, names: set[str]) -> bool:
        return not any(self.borrowing_with(name) for name in names)

    # --- fair_sharing.go ------------------------------------------------------------------------------

    def share(self) -> Share:
        if self.parent is None:
            return Share(self.weight)
        borrowed = {name: self.used(name) - quota for name, quota in self.subtree_quota.items()}
        borrowed = {name: amount for name, amount in borrowed.items() if amount > 0}
        ratio = Fraction(0)
        for name, amount in borrowed.items():
            lendable = self.parent.potential_available(name)
            if lendable > 0:
                ratio = max(ratio, Fraction(amount, lendable))
        return Share(self.weight, ratio, bool(borrowed))


@dataclass(frozen=True)
class Share:
    """The dominant resource share; greater ones have borrowed more."""

    weight: Fraction
    ratio: Fraction = Fraction(0)
    borrowing: bool = False

    def rank(self) -> tuple[bool, Fraction]:
        if self.ratio and not self.weight:
            return (True, self.ratio)
        return (False, self.ratio / self.weight if self.ratio else Fraction(0))


class Ties:
    """Kueue iterates cohorts of equal share in map order, so any may be first.

    A run uses the recorded choices and then the first, and `next_run` advances to the next.
    """

    def __init__(self) -> None:
        self.choices: list[tuple[int, int]] = []
        self.at = 0

    def choose(self, options: int) -> int:
        if self.at == len(self.choices):
            self.choices.append((0, options))
        self.at += 1
        return self.choices[self.at - 1][0]

    def next_run(self) -> bool:
        while self.choices and self.choices[-1][0] + 1 == self.choices[-1][1]:
            self.choices.pop()
        if not self.choices:
            return False
        choice, options = self.choices[-1]
        self.choices[-1] = (choice + 1, options)
        self.at = 0
        return True


Targets = frozenset[tuple[str, str]]


class Model:
    """A cohort tree with admitted workloads. Parents are given first; `parent` is empty for roots."""

    def __init__(self, nodes: list[tuple[Node, str]], admitted: list[Info]) -> None:
        self.nodes: dict[tuple[bool, str], Node] = {}
        for node, parent in nodes:
            self.nodes[node.is_queue, node.name] = node
            if parent:
                node.parent = self.nodes[False, parent]
                node.parent.children.append(node)
        for node, parent in nodes:
            if not parent:
                node.accumulate()
        for info in admitted:
            self.queue(info.queue).workloads.append(info)
            self.add(info)

    def queue(self, name: str) -> Node:
        return self.nodes[True, name]

    def add(self, info: Info) -> None:
        for name, amount in info.requests.items():
            self.queue(info.queue).add_usage(name, amount)

    def remove(self, info: Info) -> None:
        for name, amount in info.requests.items():
            self.queue(info.queue).remove_usage(name, amount)

    # --- flavorassigner -------------------------------------------------------------------------------

    def needs_preemption(self, incoming: Info) -> set[str] | None:
        """Return the short resources, or None if quota could never fit the request."""
        queue = self.queue(incoming.queue)
        requested = {name: amount for name, amount in incoming.requests.items() if amount > 0}
        if any(amount > queue.potential_available(name) for name, amount in requested.items()):
            return None
        return {name for name, amount in requested.items() if amount > max(0, queue.available(name))}

    def may_preempt(self, incoming: Info, short: set[str], *, fair_sharing: bool) -> bool:
        """Return whether victims are searched at all (`fitsResourceQuota`)."""
        queue = self.queue(incoming.queue)
        return all(
            queue.quotas.get(name, Quota()).nominal >= incoming.requests[name]
            or self.may_reclaim_in_hierarchy(queue, name, incoming.requests[name])
            or (fair_sharing and queue.reclaim)
            for name in short
        )

    @staticmethod
    def may_reclaim_in_hierarchy(queue: Node, name: str, amount: int) -> bool:
        if queue.parent is None or not queue.borrowing_with(name, amount):
            return queue.parent is not None
        remaining = amount - queue.local_available(name)
        for cohort in queue.ancestors():
            if not cohort.borrowing_with(name, remaining):
                return cohort.parent is not None
            remaining -= cohort.local_available(name)
        return False

    # --- preemption.go --------------------------------------------------------------------------------

    def fits(self, incoming: Info, *, allow_borrowing: bool = True) -> bool:
        queue = self.queue(incoming.queue)
        return all(
            (allow_borrowing or not queue.borrowing_with(name, amount))
            and amount <= max(0, queue.available(name))
            for name, amount in incoming.requests.items()
        )

    def fill_back(
        self, incoming: Info, targets: list[tuple[Info, str]], *, allow_borrowing: bool
    ) -> list[tuple[Info, str]]:
        for index in range(len(targets) - 2, -1, -1):
            self.add(targets[index][0])
            if self.fits(incoming, allow_borrowing=allow_borrowing):
                targets[index] = targets[-1]
                targets.pop()
            else:
                self.remove(targets[index][0])
        return targets

    def restore(self, targets: list[tuple[Info, str]]) -> None:
        for info, _ in targets:
            self.add(info)

    def ordering(self, info: Info, own: Node) -> tuple[bool, int, int, str]:
        return (info.queue == own.name, info.priority, -info.admitted_at, info.uid)

    @staticmethod
    def uses(info: Info, names: set[str]) -> bool:
        return any(info.requests.get(name, 0) > 0 for name in names)

    # --- preemption/fairsharing -------------------------------------------------------------------------

    def fair(self, incoming: Info, *, gated: bool = True) -> list[Targets]:
        """Return the victims of fair sharing, for each outcome of map order.

        Without `gated`, victims are searched even if the flavor would be skipped before.
        """
        short = self.needs_preemption(incoming)
        if not short or (gated and not self.may_preempt(incoming, short, fair_sharing=True)):
            return [frozenset()]
        ties = Ties()
        outcomes = [self.fair_once(incoming, short, ties)]
        while ties.next_run():
            outcome = self.fair_once(incoming, short, ties)
            if outcome not in outcomes:
                outcomes.append(outcome)
        return outcomes

    def fair_once(self, incoming: Info, short: set[str], ties: Ties) -> Targets:
        queue = self.queue(incoming.queue)
        candidates = [
            info for info in queue.workloads if info.priority < incoming.priority and self.uses(info, short)
        ]
        if queue.parent is not None and queue.reclaim:
            for other in queue.root().queues():
                if other is not queue and not other.within_nominal_in(short):
                    candidates += [info for info in other.workloads if self.uses(info, short)]
        candidates.sort(key=lambda info: self.ordering(info, queue))
        if not candidates:
            return frozenset()
        self.add(incoming)
        targets: list[tuple[Info, str]] = []
        retry: list[Info] = []
        fit = self.first_strategy(incoming, queue, candidates, short, targets, retry, ties)
        if not fit:
            fit = self.second_strategy(incoming, queue, retry, targets, ties)
        self.remove(incoming)
        if fit:
            targets = self.fill_back(incoming, targets, allow_borrowing=True)
        self.restore(targets)
        return frozenset((info.uid, reason) for info, reason in targets) if fit else frozenset()

    def fits_without_simulation(self, incoming: Info) -> bool:
        self.remove(incoming)
        fits = self.fits(incoming)
        self.add(incoming)
        return fits

    def first_strategy(
        self,
        incoming: Info,
        queue: Node,
        candidates: list[Info],
        short: set[str],
        targets: list[tuple[Info, str]],
        retry: list[Info],
        ties: Ties,
    ) -> bool:
        ordering = Ordering(self, queue, candidates, ties)
        within_nominal = queue.within_nominal_in(short)
        for target in ordering:
            if target is queue or within_nominal:
                info = ordering.pop(target)
                self.remove(info)
                targets.append((info, IN_CLUSTER_QUEUE if target is queue else RECLAMATION))
                if self.fits_without_simulation(incoming):
                    return True
                continue
            own_lca, other_lca = ordering.almost_lcas(target)
            mine_new = own_lca.share().rank()
            while ordering.heads.get(target.name):
                info = ordering.pop(target)
                self.remove(info)
                passed = mine_new <= other_lca.share().rank()
                self.add(info)
                if not passed:
                    retry.append(info)
                    continue
                self.remove(info)
                targets.append((info, FAIR_SHARING))
                if self.fits_without_simulation(incoming):
                    return True
                break
        return False

    def second_strategy(
        self, incoming: Info, queue: Node, retry: list[Info], targets: list[tuple[Info, str]], ties: Ties
    ) -> bool:
        ordering = Ordering(self, queue, retry, ties)
        for target in ordering:
            own_lca, other_lca = ordering.almost_lcas(target)
            passed = own_lca.share().rank() < other_lca.share().rank()
            info = ordering.pop(target)
            if passed:
                self.remove(info)
                targets.append((info, FAIR_SHARING))
                if self.fits_without_simulation(incoming):
                    return True
            ordering.pruned.add(target)
        return False


class Ordering:
    """`TargetClusterQueueOrdering`: the order of queues to preempt."""

    def __init__(self, model: Model, queue: Node, candidates: list[Info], ties: Ties) -> None:
        self.model, self.queue, self.ties = model, queue, ties
        self.path = set(queue.ancestors())
        self.pruned: set[Node] = set()
        self.heads: dict[str, list[Info]] = {}
        for info in candidates:
            self.heads.setdefault(info.queue, []).append(info)

    def pop(self, queue: Node) -> Info:
        return self.heads[queue.name].pop(0)

    def __iter__(self) -> Iterator[Node]:
        if self.queue.parent is None:
            while self.queue not in self.pruned and self.heads.get(self.queue.name):
                yield self.queue
            return
        root = self.queue.root()
        while root not in self.pruned:
            target = self.next_target(root)
            if target is not None:
                yield target

    def next_target(self, cohort: Node) -> Node | None:
        best: Node | None = None
        for queue in (child for child in cohort.children if child.is_queue and child not in self.pruned):
            share = queue.share()
            if (not share.borrowing and queue is not self.queue) or not self.heads.get(queue.name):
                self.pruned.add(queue)
            elif best is None or share.rank() > best.share().rank():
                best = queue
            elif share.rank() == best.share().rank():
                head, other = self.heads[queue.name][0], self.heads[best.name][0]
                if self.model.ordering(head, self.queue) < self.model.ordering(other, self.queue):
                    best = queue
        cohorts: list[Node] = []
        for child in (
            subtree for subtree in cohort.children if not subtree.is_queue and subtree not in self.pruned
        ):
            share = child.share()
            if not share.borrowing and child not in self.path:
                self.pruned.add(child)
            elif not cohorts or share.rank() > cohorts[0].share().rank():
                cohorts = [child]
            elif share.rank() == cohorts[0].share().rank():
                cohorts.append(child)
        if not cohorts and best is None:
            self.pruned.add(cohort)
            return None
        if cohorts and (best is None or cohorts[0].share().rank() >= best.share().rank()):
            return self.next_target(
                cohorts[self.ties.choose(len(cohorts))] if len(cohorts) > 1 else cohorts[0]
            )
        return best

    def almost_lcas(self, target: Node) -> tuple[Node, Node]:
        lca = next(node for node in target.ancestors() if node in self.path)
        return self.below(self.queue, lca), self.below(target, lca)

    @staticmethod
    def below(queue: Node, lca: Node) -> Node:
        node = queue
        while node.parent is not lca:
            assert node.parent is not None
            node = node.parent
        return node
