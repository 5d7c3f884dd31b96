"""Whether what is to be booked fits beside what is booked already, at every moment. Pure.

Times are seconds since 1970, ends are exclusive, amounts in base units. They are kept and compared as
workspaces' amounts are (`counted`): GPUs of a model are among the GPUs of any model too. People say them
the other way (`plain`): so many of a model, and so many more of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from portal.quota.limits import resources

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Booked:
    """Capacity of a team from `start_s` until just before `end_s`."""

    team: str
    amounts: Amounts
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class Clash:
    """The first moment and resource at which it does not fit.

    `booked` is what `holders` (those who have booked most come first) have of the `capacity` then,
    until `until_s` at least; `wanted` was asked for beside it.
    """

    resource: str
    at_s: int
    until_s: int
    capacity: int
    booked: int
    wanted: int
    holders: tuple[tuple[str, int], ...]

    @property
    def left(self) -> int:
        return max(0, self.capacity - self.booked)


def counted(amounts: Amounts) -> dict[str, int]:
    """What people say, with GPUs of a model counted among GPUs of any model."""
    every = amounts.get(resources.GPU, 0) + _of_models(amounts)
    return {**amounts, **({resources.GPU: every} if every else {})}


def plain(amounts: Amounts) -> dict[str, int]:
    """What `counted` was given: GPUs of any model are those beside the ones of a model."""
    more = amounts.get(resources.GPU, 0) - _of_models(amounts)
    found = {name: amount for name, amount in amounts.items() if name != resources.GPU}
    return {**found, **({resources.GPU: more} if more > 0 else {})}


def _of_models(amounts: Amounts) -> int:
    return sum(
        amount
        for resource, amount in amounts.items()
        if resource.startswith("gpu:") and not resource.startswith("gpu:simulated-")
    )


def clash(
    amounts: Amounts, start_s: int, end_s: int, others: Iterable[Booked], capacity: Amounts
) -> Clash | None:
    """Where `amounts` do not fit beside `others` between the two moments; None where they always do."""
    near = [each for each in others if each.start_s < end_s and each.end_s > start_s]
    # What is booked grows only where something begins.
    moments = sorted({start_s, *(each.start_s for each in near if each.start_s > start_s)})
    for at_s in moments:
        present = [each for each in near if each.start_s <= at_s < each.end_s]
        for resource in _models_first(amounts):
            held: dict[str, int] = {}
            for each in present:
                if resource in each.amounts:
                    held[each.team] = held.get(each.team, 0) + each.amounts[resource]
            booked, there = sum(held.values()), capacity.get(resource, 0)
            if booked + amounts[resource] > there:
                ends = [each.end_s for each in present if resource in each.amounts]
                return Clash(
                    resource=resource,
                    at_s=at_s,
                    until_s=min(ends, default=end_s),
                    capacity=there,
                    booked=booked,
                    wanted=amounts[resource],
                    holders=tuple(sorted(held.items(), key=lambda item: (-item[1], item[0]))),
                )
    return None


def _models_first(amounts: Amounts) -> list[str]:
    """A model is the clearer reason than GPUs of any model."""
    return sorted(amounts, key=lambda resource: (resource == resources.GPU, resource))


def first_fit(
    amounts: Amounts, start_s: int, end_s: int, others: Sequence[Booked], capacity: Amounts
) -> int | None:
    """The earliest start from `start_s` on at which the same span fits; None where it never does."""
    lasts_s = end_s - start_s
    later = sorted({each.end_s for each in others if each.end_s > start_s})
    for at_s in (start_s, *later):
        if clash(amounts, at_s, at_s + lasts_s, others, capacity) is None:
            return at_s
    return None


def peak(resource: str, start_s: int, end_s: int, booked: Iterable[Booked]) -> int:
    """The most of a resource that is booked at once between the two moments."""
    near = [
        each for each in booked if each.start_s < end_s and each.end_s > start_s and resource in each.amounts
    ]
    return max(
        (
            sum(each.amounts[resource] for each in near if each.start_s <= at_s < each.end_s)
            for at_s in {max(start_s, each.start_s) for each in near}
        ),
        default=0,
    )


def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each span (in order of their starts), so that none covers another in its lane."""
    free_at: list[int] = []
    found = []
    for start, end in spans:
        lane = next((index for index, until in enumerate(free_at) if until <= start), len(free_at))
        if lane == len(free_at):
            free_at.append(end)
        else:
            free_at[lane] = end
        found.append(lane)
    return found
