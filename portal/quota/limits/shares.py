"""Fair shares: how much of the lendable capacity each team uses, and how to divide spare capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portal.quota.limits.tree import Node
from portal.quota.limits.types import WEIGHT_ONE, Amounts

SHARE_ONE = 10**9
"""The share of a node with weight 1 that uses the whole lendable amount."""
MAX_SHARE = 1 << 80
"""Added to the share of borrowers with weight 0, to sort them after all others."""
CORES_PER_GPU = 16
"""CPU cores that count as one GPU in a member's use."""


def share_of(taken: int, lendable: int, weight_milli: int) -> int:
    """Return the used part of the lendable amount, divided by the weight, as an integer (`SHARE_ONE`).

    As in Kueue, the share is 0 if nothing is lendable: then the amount is in use because a limit was lowered.
    """
    if taken <= 0 or lendable <= 0:
        return 0
    if weight_milli == 0:
        return MAX_SHARE + taken * SHARE_ONE // lendable
    return taken * SHARE_ONE * WEIGHT_ONE // (lendable * weight_milli)


def dominant_share(node: Node, averages: Amounts | None = None) -> int:
    """Return the dominant share of a team or cohort; 0 if nothing is borrowed.

    It is the largest ratio of borrowed to lendable amount over all resources, divided by the weight.
    `averages` (recently borrowed amounts, `decay_average`) count as much as currently borrowed ones.
    """
    if node.parent is None:
        return 0
    share = 0
    for resource in node.root_names:
        taken = node.borrowed(resource) + (averages.get(resource, 0) if averages else 0)
        if taken > 0:
            share = max(share, share_of(taken, node.parent.potential(resource), node.weight_milli))
    return share


def fair_parts(share: int, node: Node) -> int:
    """Return a share as a multiple of the node's fair share, in units of `SHARE_ONE`.

    The fair share is the node's weight over the sum of weights in its cohort. So the result depends neither
    on the number of nodes nor on the scale of weights.
    """
    if not share or node.parent is None:
        return 0
    # Without any weights, all nodes are equal.
    return share * (node.parent.children_weight_milli or WEIGHT_ONE) // WEIGHT_ONE


def fair_parts_above(node: Node) -> int:
    """Return the sum of the `fair_parts` of all cohorts above the node, except the root."""
    return sum(fair_parts(dominant_share(cohort), cohort) for cohort in node.path()[1:-1])


def weighted_use(amounts: Amounts, rates_milli: Amounts) -> int:
    """Return the amounts as one number, in milli-GPU: accelerators by rate (default: 1), and CPU cores."""
    accelerators = sum(
        amount * rates_milli.get(name, WEIGHT_ONE)
        for name, amount in amounts.items()
        if name.startswith(("gpu:", "mig:"))
    )
    cores_milli = amounts.get("cpu_milli", 0) + amounts.get("simulated_cpu_milli", 0)
    return accelerators // WEIGHT_ONE + cores_milli // CORES_PER_GPU


def decay_average(average: Amounts, borrowed: Amounts, elapsed_s: int, half_life_s: int) -> dict[str, int]:
    """Return the decayed average after `elapsed_s` more seconds at `borrowed`.

    Uses integers only: whole half-lives halve the average, the rest is interpolated linearly. Many short
    steps and one long one differ by at most a few percent.
    """
    if elapsed_s < 0 or half_life_s <= 0:
        raise ValueError("time goes forward and a half-life is positive")
    halvings, rest = divmod(elapsed_s, half_life_s)
    factor = (SHARE_ONE >> min(halvings, 60)) * (2 * half_life_s - rest) // (2 * half_life_s)
    result = {}
    for resource in {*average, *borrowed}:
        now = borrowed.get(resource, 0)
        value = now + (average.get(resource, 0) - now) * factor // SHARE_ONE
        if value:
            result[resource] = value
    return result


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """A queue's claim in a division. `limit` None: no limit.

    Ties are broken by order in the mapping, which is the order of creation.
    """

    deserved: int
    request: int
    weight: int = 1
    limit: int | None = None
    priority: int = 0

    @property
    def demand(self) -> int:
        return self.request if self.limit is None else min(self.request, self.limit)


def divide(total: int, claims: Mapping[str, QueueClaim], *, unit: int = 1) -> dict[str, int]:
    """Divide `total` between queues as KAI does: first what each deserves, then the rest.

    The rest goes to the highest priority with unmet requests, by over-quota weight. Remainders are
    distributed in `unit`s by the largest remainder, then by order of creation. No queue gets more than its
    request or limit. The sum is at most `total`.
    """
    shares: dict[str, int] = {}
    left = total
    for name, claim in sorted(claims.items(), key=lambda item: -item[1].priority):
        shares[name] = max(0, min(claim.deserved, claim.demand, left))
        left -= shares[name]
    for priority in sorted({claim.priority for claim in claims.values()}, reverse=True):
        group = [name for name, claim in claims.items() if claim.priority == priority]
        left = _divide_rest(left, group, claims, shares, unit)
    return {name: shares[name] for name in claims}


def _divide_rest(
    left: int, group: Sequence[str], claims: Mapping[str, QueueClaim], shares: dict[str, int], unit: int
) -> int:
    while left > 0:
        claimants = [name for name in group if shares[name] < claims[name].demand]
        # Without weights there is no over-quota share to divide.
        weights = sum(claims[name].weight for name in claimants)
        if not claimants or weights == 0:
            break
        before, remainders = left, []
        for place, name in enumerate(claimants):
            exact = before * claims[name].weight
            quotient = exact // (weights * unit) * unit
            step = min(quotient, claims[name].demand - shares[name])
            shares[name] += step
            left -= step
            if claims[name].weight and shares[name] < claims[name].demand:
                remainders.append((-(exact - quotient * weights), place, name))
        if left < before:
            if any(shares[name] >= claims[name].demand for name in claimants):
                continue
        elif not remainders:
            break
        for _, _, name in sorted(remainders):
            step = min(unit, left, claims[name].demand - shares[name])
            shares[name] += step
            left -= step
        break
    return left
