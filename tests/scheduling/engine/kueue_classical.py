"""Kueue's classical preemption (`pkg/scheduler/preemption/classical`), beside `kueue_model`.

Berth has fair sharing only; both agree if no other queue has borrowed,
or one only.
"""

from __future__ import annotations

from tests.scheduling.engine.kueue_model import (
    IN_CLUSTER_QUEUE,
    RECLAMATION,
    Info,
    Model,
    Node,
    Quota,
    Targets,
)


def classical(model: Model, incoming: Info) -> Targets:
    """Return the victims of classical preemption."""
    short = model.needs_preemption(incoming)
    if not short or not model.may_preempt(incoming, short, fair_sharing=False):
        return frozenset()
    queue = model.queue(incoming.queue)
    hierarchy: list[tuple[Info, Node | None]] = []
    by_priority: list[tuple[Info, Node | None]] = []
    if queue.parent is not None and queue.reclaim:
        _collect(model, queue, dict(incoming.requests), short, hierarchy, by_priority)
    same: list[tuple[Info, Node | None]] = [
        (info, None)
        for info in queue.workloads
        if model.uses(info, short) and info.priority < incoming.priority
    ]
    candidates = []
    for group, always in ((hierarchy, True), (by_priority, False), (same, True)):
        ordered = sorted(group, key=lambda target: model.ordering(target[0], queue))
        candidates += [(info, lca, always) for info, lca in ordered]
    under_nominal = all(queue.quotas.get(name, Quota()).nominal > queue.used(name) for name in short)
    if not (hierarchy or by_priority) or not under_nominal:
        attempts = [True]
    elif not hierarchy:
        attempts = [False, True]
    else:
        attempts = [True, False]
    for borrow in attempts:
        targets: list[tuple[Info, str]] = []
        for info, lca, always in candidates:
            if not _valid(model, info, lca, always, borrow, short, queue):
                continue
            model.remove(info)
            targets.append((info, IN_CLUSTER_QUEUE if info.queue == queue.name else RECLAMATION))
            if model.fits(incoming, allow_borrowing=borrow):
                targets = model.fill_back(incoming, targets, allow_borrowing=borrow)
                model.restore(targets)
                return frozenset((target.uid, reason) for target, reason in targets)
        model.restore(targets)
    return frozenset()


def _collect(
    model: Model,
    queue: Node,
    remaining: dict[str, int],
    short: set[str],
    hierarchy: list[tuple[Info, Node | None]],
    by_priority: list[tuple[Info, Node | None]],
) -> None:
    advantage = all(not queue.borrowing_with(name, amount) for name, amount in remaining.items())
    remaining = {name: max(0, amount - queue.local_available(name)) for name, amount in remaining.items()}
    previous: Node | None = None
    for subtree in queue.ancestors():
        into = hierarchy if advantage else by_priority
        _collect_in_subtree(model, subtree, subtree, previous, queue, short, into)
        fits = all(not subtree.borrowing_with(name, amount) for name, amount in remaining.items())
        remaining = {
            name: max(0, amount - subtree.local_available(name)) for name, amount in remaining.items()
        }
        advantage = advantage or fits
        previous = subtree


def _collect_in_subtree(
    model: Model,
    cohort: Node,
    subtree: Node,
    skip: Node | None,
    queue: Node,
    short: set[str],
    into: list[tuple[Info, Node | None]],
) -> None:
    for child in cohort.children:
        if child is skip or child is queue or child.within_nominal_in(short):
            continue
        if child.is_queue:
            into += [(info, subtree) for info in child.workloads if model.uses(info, short)]
        else:
            _collect_in_subtree(model, child, subtree, skip, queue, short, into)


def _valid(
    model: Model, info: Info, lca: Node | None, always: bool, borrow: bool, short: set[str], queue: Node
) -> bool:
    if info.queue == queue.name:
        return True
    if borrow and not always:
        return False
    other = model.queue(info.queue)
    if other.within_nominal_in(short):
        return False
    for node in other.ancestors():
        if node is lca:
            break
        if node.within_nominal_in(short):
            return False
    return True
