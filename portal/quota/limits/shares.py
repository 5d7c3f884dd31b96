"""Fair shares: how much of what is lent a team takes, and how spare capacity is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portal.quota.limits.tree import Node
from portal.quota.limits.types import WEIGHT_ONE, Amounts

SHARE_ONE = 10**9
"""A share that takes all that is lendable, at weight one."""
MAX_SHARE = 1 << 80
"""Above all shares at a weight: who borrows with weight zero has this and what it would be at weight one."""


def share_of(taken: int, lendable: int, weight_milli: int) -> int:
    """The share of who has taken so much of the lendable, as an integer (`SHARE_ONE`).

    As in Kueue nothing counts where nobody lends: then it is held because a limit was lowered.
    """
    if taken <= 0 or lendable <= 0:
        return 0
    if weight_milli == 0:
        return MAX_SHARE + taken * SHARE_ONE // lendable
    return taken * SHARE_ONE * WEIGHT_ONE // (lendable * weight_milli)


def dominant_share(node: Node, averages: Amounts | None = None) -> int:
    """The largest part of the lendable that the node has borrowed, over its weight; zero within quota.

    `averages` (what it borrowed of late, `decayed`) counts as much as what it borrows now.
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
    """A share of the node in fair parts: `SHARE_ONE` where it takes of the lendable what its weight says.

    The fair part is its weight over the sum of all weights in its cohort, so it hangs neither on how many
    there are nor on the scale of the weights.
    """
    if not share or node.parent is None:
        return 0
    # Where nobody has a weight all are alike.
    return share * (node.parent.children_weight_milli or WEIGHT_ONE) // WEIGHT_ONE


def fair_parts_above(node: Node) -> int:
    """The fair parts that the cohorts above the node take of those above them, summed up."""
    return sum(fair_parts(dominant_share(each), each) for each in node.path()[1:-1])


def decayed(average: Amounts, borrowed: Amounts, elapsed_s: int, half_life_s: int) -> dict[str, int]:
    """The decayed mean of borrowed use after `elapsed_s` more seconds at `borrowed`.

    Integers throughout: whole half-lives halve, the rest is taken along the chord, so many short steps
    and one long one differ by a few per cent at most.
    """
    if elapsed_s < 0 or half_life_s <= 0:
        raise ValueError("time goes forward and a half-life is positive")
    whole, rest = divmod(elapsed_s, half_life_s)
    kept = (SHARE_ONE >> min(whole, 60)) * (2 * half_life_s - rest) // (2 * half_life_s)
    result = {}
    for resource in {*average, *borrowed}:
        now = borrowed.get(resource, 0)
        value = now + (average.get(resource, 0) - now) * kept // SHARE_ONE
        if value:
            result[resource] = value
    return result


@dataclass(frozen=True, slots=True)
class Claim:
    """A queue's part in a division. `limit` None: none. Order in the sequence is the order of creation."""

    deserved: int
    request: int
    weight: int = 1
    limit: int | None = None
    priority: int = 0

    @property
    def wants(self) -> int:
        return self.request if self.limit is None else min(self.request, self.limit)


def divide(total: int, claims: Mapping[str, Claim], *, unit: int = 1) -> dict[str, int]:
    """Divide `total` between queues as KAI does: first what each deserves, then the rest.

    The rest goes to the highest priority that still wants some, by over-quota weight; what is left of a
    division is handed out in `unit`s by the largest remainder, then by order of creation. Nobody gets
    more than it requests or its limit allows. The shares sum to no more than `total`.
    """
    shares: dict[str, int] = {}
    left = total
    for name, claim in sorted(claims.items(), key=lambda item: -item[1].priority):
        shares[name] = max(0, min(claim.deserved, claim.wants, left))
        left -= shares[name]
    for priority in sorted({claim.priority for claim in claims.values()}, reverse=True):
        group = [name for name, claim in claims.items() if claim.priority == priority]
        left = _divide_rest(left, group, claims, shares, unit)
    return {name: shares[name] for name in claims}


def _divide_rest(
    left: int, group: Sequence[str], claims: Mapping[str, Claim], shares: dict[str, int], unit: int
) -> int:
    while left > 0:
        hungry = [name for name in group if shares[name] < claims[name].wants]
        # Without any weight there is no over-quota share to divide.
        weights = sum(claims[name].weight for name in hungry)
        if not hungry or weights == 0:
            break
        before, remainders = left, []
        for place, name in enumerate(hungry):
            exact = before * claims[name].weight
            whole = exact // (weights * unit) * unit
            given = min(whole, claims[name].wants - shares[name])
            shares[name] += given
            left -= given
            if claims[name].weight and shares[name] < claims[name].wants:
                remainders.append((-(exact - whole * weights), place, name))
        if left < before:
            if any(shares[name] >= claims[name].wants for name in hungry):
                continue
        elif not remainders:
            break
        for _, _, name in sorted(remainders):
            given = min(unit, left, claims[name].wants - shares[name])
            shares[name] += given
            left -= given
        break
    return left
