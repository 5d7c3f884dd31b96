"""Quota in Kueue's terms: a tree of cohorts with teams as leaves, for any number of resources.

A node keeps the quota that it does not lend (its local part). Its parent holds the rest, which is available
to all nodes below. Quota does not govern a resource in a tree where no node names the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from portal.quota.limits.types import Amounts, Cohort, Limit, Team

UNGOVERNED = 1 << 62
NO_LIMIT = Limit()


class Node:
    """A cohort or team: its total `quota`, unlent part (`local`) and `usage`, by resource."""

    __slots__ = (
        "children",
        "children_weight_milli",
        "limits",
        "local",
        "name",
        "parent",
        "quota",
        "root_names",
        "usage",
        "weight_milli",
    )

    def __init__(self, name: str, weight_milli: int, limits: dict[str, Limit]) -> None:
        self.name = name
        self.weight_milli = weight_milli
        self.limits = limits
        self.parent: Node | None = None
        self.children: list[Node] = []
        self.children_weight_milli = 0
        self.quota: dict[str, int] = {}
        self.local: dict[str, int] = {}
        self.usage: dict[str, int] = {}
        self.root_names: frozenset[str] = frozenset()

    def path(self) -> list[Node]:
        """Return this node and its ancestors, root last."""
        node: Node | None = self
        nodes = []
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def available(self, resource: str) -> int:
        """Return the amount that can still be added here; negative if usage exceeds the limit."""
        if resource not in self.root_names:
            return UNGOVERNED
        quota, usage = self.quota[resource], self.usage.get(resource, 0)
        if self.parent is None:
            return quota - usage
        local = self.local[resource]
        above = self.parent.available(resource)
        borrowing = self.limits.get(resource, NO_LIMIT).borrowing
        if borrowing is not None:
            above = min(above, quota - local - max(0, usage - local) + borrowing)
        return max(0, local - usage) + above

    def potential(self, resource: str) -> int:
        """Return the largest amount that this node could use if no other node used anything."""
        if resource not in self.root_names:
            return UNGOVERNED
        quota = self.quota[resource]
        if self.parent is None:
            return quota
        borrowing = self.limits.get(resource, NO_LIMIT).borrowing
        total = self.local[resource] + self.parent.potential(resource)
        return total if borrowing is None else min(total, quota + borrowing)

    def borrowed(self, resource: str) -> int:
        """Return the usage beyond the node's own quota; 0 without a parent."""
        if self.parent is None or resource not in self.root_names:
            return 0
        return max(0, self.usage.get(resource, 0) - self.quota[resource])

    def change(self, resource: str, amount: int) -> None:
        """Add an amount (or subtract, if negative) to the usage of this node and its ancestors."""
        usage = self.usage.get(resource, 0)
        self.usage[resource] = usage + amount
        if self.parent is None:
            return
        local = self.local.get(resource, 0)
        delta = max(0, usage + amount - local) - max(0, usage - local)
        if delta:
            self.parent.change(resource, delta)


class QuotaTree:
    """The quota and usage of all teams.

    Raises ValueError for a duplicate name, an unknown cohort, a cycle of cohorts, a negative weight or limit.
    """

    def __init__(self, teams: Iterable[Team], cohorts: Iterable[Cohort] = ()) -> None:
        self.cohorts: dict[str, Node] = {}
        self.teams: dict[str, Node] = {}
        parents: list[tuple[Node, str]] = []
        for kind, into in ((cohorts, self.cohorts), (teams, self.teams)):
            for item in kind:
                if item.name in into:
                    raise ValueError(f"{item.name!r} is named twice")
                _check(item.name, item.weight_milli, item.limits)
                node = Node(item.name, item.weight_milli, dict(item.limits))
                into[item.name] = node
                parents.append((node, item.parent if isinstance(item, Cohort) else item.cohort))
        for node, parent in parents:
            if parent:
                if parent not in self.cohorts:
                    raise ValueError(f"{node.name!r} belongs to the unknown cohort {parent!r}")
                node.parent = self.cohorts[parent]
                node.parent.children.append(node)
                node.parent.children_weight_milli += node.weight_milli
        roots = [node for node, parent in parents if not parent]
        seen = 0
        for root in roots:
            members = _subtree(root)
            seen += len(members)
            names = frozenset(name for node in members for name in node.limits)
            for node in members:
                node.root_names = names
            for node in reversed(members):
                _sum_up(node)
        if seen != len(parents):
            raise ValueError("cohorts form a circle")

    def clone(self) -> QuotaTree:
        """Return an independent copy with the same limits."""
        twin = QuotaTree.__new__(QuotaTree)
        copies: dict[int, Node] = {}
        for node in (*self.cohorts.values(), *self.teams.values()):
            copy = Node(node.name, node.weight_milli, node.limits)
            copy.quota, copy.local, copy.usage = node.quota, node.local, dict(node.usage)
            copy.root_names = node.root_names
            copy.children_weight_milli = node.children_weight_milli
            copies[id(node)] = copy
        for node in (*self.cohorts.values(), *self.teams.values()):
            copy = copies[id(node)]
            copy.parent = copies[id(node.parent)] if node.parent else None
            copy.children = [copies[id(child)] for child in node.children]
        twin.cohorts = {name: copies[id(node)] for name, node in self.cohorts.items()}
        twin.teams = {name: copies[id(node)] for name, node in self.teams.items()}
        return twin

    def add(self, team: str, amounts: Amounts) -> None:
        node = self.teams[team]
        for resource, amount in amounts.items():
            node.change(resource, amount)

    def remove(self, team: str, amounts: Amounts) -> None:
        node = self.teams[team]
        for resource, amount in amounts.items():
            node.change(resource, -amount)

    def shortfall(self, team: str, amounts: Amounts) -> str:
        """Return the first resource that the team lacks for the amounts, or an empty string."""
        node = self.teams[team]
        for resource, amount in amounts.items():
            if amount > 0 and node.available(resource) < amount:
                return resource
        return ""

    def overrun(self) -> str:
        """Return the first exceeded quota as text, or an empty string."""
        for node in (*self.teams.values(), *self.cohorts.values()):
            for resource in sorted(node.root_names):
                limit = node.quota[resource]
                if node.parent is not None:
                    borrowing = node.limits.get(resource, NO_LIMIT).borrowing
                    if borrowing is None:
                        continue
                    limit += borrowing
                usage = node.usage.get(resource, 0)
                if usage > limit:
                    return f"{node.name} holds {usage} {resource} of {limit}"
        return ""


def _check(name: str, weight_milli: int, limits: Mapping[str, Limit]) -> None:
    if weight_milli < 0:
        raise ValueError(f"the weight of {name!r} is below zero")
    for resource, limit in limits.items():
        if limit.nominal < 0 or (limit.borrowing or 0) < 0 or (limit.lending or 0) < 0:
            raise ValueError(f"a limit of {name!r} for {resource} is below zero")


def _subtree(root: Node) -> list[Node]:
    nodes = [root]
    for node in nodes:
        nodes.extend(node.children)
    return nodes


def _sum_up(node: Node) -> None:
    """Compute the quota of a node from its own quota and what its children lend, which must be computed."""
    for resource in node.root_names:
        limit = node.limits.get(resource, NO_LIMIT)
        lent = sum(child.quota[resource] - child.local[resource] for child in node.children)
        node.quota[resource] = quota = limit.nominal + lent
        keeps = node.parent is not None and limit.lending is not None
        node.local[resource] = max(0, quota - (limit.lending or 0)) if keeps else 0
