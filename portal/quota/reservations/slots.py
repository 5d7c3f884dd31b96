"""Checks whether a reservation fits beside others at every moment. Pure.

Times are seconds since 1970, ends are exclusive, amounts in base units. Stored amounts count like those of
workspaces (`add_models_to_total`): GPUs of a model also count as GPUs of any model. Users enter them
separately (`subtract_models_from_total`): GPUs of a model, and additional GPUs of any model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from portal.quota.limits import resources

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BookedSlot:
    """Capacity reserved for a team from `start_s` (inclusive) to `end_s` (exclusive)."""

    team: str
    amounts: Amounts
    start_s: int
    end_s: int


@dataclass(frozen=True, slots=True)
class SlotConflict:
    """The first moment and resource at which a reservation does not fit.

    `holders` (largest first) have reserved `booked` of the `capacity` until at least `until_s`. The
    reservation wants `wanted` more.
    """

    resource: str
    at_s: int
    until_s: int
    capacity: int
    booked: int
    wanted: int
    holders: tuple[tuple[str, int], ...]

    @property
    def remaining(self) -> int:
        return max(0, self.capacity - self.booked)


def add_models_to_total(amounts: Amounts) -> dict[str, int]:
    """Return entered amounts with GPUs of a model included in GPUs of any model."""
    every = amounts.get(resources.GPU, 0) + _model_total(amounts)
    return {**amounts, **({resources.GPU: every} if every else {})}


def subtract_models_from_total(amounts: Amounts) -> dict[str, int]:
    """Return amounts as entered: GPUs of any model exclude those of a specific model.

    The inverse of `add_models_to_total`.
    """
    more = amounts.get(resources.GPU, 0) - _model_total(amounts)
    others = {name: amount for name, amount in amounts.items() if name != resources.GPU}
    return {**others, **({resources.GPU: more} if more > 0 else {})}


def _model_total(amounts: Amounts) -> int:
    return sum(
        amount
        for resource, amount in amounts.items()
        if resource.startswith("gpu:") and not resource.startswith("gpu:simulated-")
    )


def find_conflict(
    amounts: Amounts, start_s: int, end_s: int, others: Iterable[BookedSlot], capacity: Amounts
) -> SlotConflict | None:
    """Return the first conflict of `amounts` with `others` within the period, or None."""
    near = [slot for slot in others if slot.start_s < end_s and slot.end_s > start_s]
    # Booked amounts increase only at starts.
    moments = sorted({start_s, *(slot.start_s for slot in near if slot.start_s > start_s)})
    for at_s in moments:
        present = [slot for slot in near if slot.start_s <= at_s < slot.end_s]
        for resource in _models_first(amounts):
            booked_by_team: dict[str, int] = {}
            for slot in present:
                if resource in slot.amounts:
                    booked_by_team[slot.team] = booked_by_team.get(slot.team, 0) + slot.amounts[resource]
            booked, available = sum(booked_by_team.values()), capacity.get(resource, 0)
            if booked + amounts[resource] > available:
                ends = [slot.end_s for slot in present if resource in slot.amounts]
                return SlotConflict(
                    resource=resource,
                    at_s=at_s,
                    until_s=min(ends, default=end_s),
                    capacity=available,
                    booked=booked,
                    wanted=amounts[resource],
                    holders=tuple(sorted(booked_by_team.items(), key=lambda item: (-item[1], item[0]))),
                )
    return None


def _models_first(amounts: Amounts) -> list[str]:
    """Sort specific models before GPUs of any model, because they make clearer reasons."""
    return sorted(amounts, key=lambda resource: (resource == resources.GPU, resource))


def earliest_fitting_start(
    amounts: Amounts, start_s: int, end_s: int, others: Sequence[BookedSlot], capacity: Amounts
) -> int | None:
    """Return the earliest start, not before `start_s`, at which the same period fits, or None if never."""
    lasts_s = end_s - start_s
    later = sorted({slot.end_s for slot in others if slot.end_s > start_s})
    for at_s in (start_s, *later):
        if find_conflict(amounts, at_s, at_s + lasts_s, others, capacity) is None:
            return at_s
    return None


def peak(resource: str, start_s: int, end_s: int, booked: Iterable[BookedSlot]) -> int:
    """Return the peak of a booked resource within the period."""
    near = [
        slot for slot in booked if slot.start_s < end_s and slot.end_s > start_s and resource in slot.amounts
    ]
    return max(
        (
            sum(slot.amounts[resource] for slot in near if slot.start_s <= at_s < slot.end_s)
            for at_s in {max(start_s, slot.start_s) for slot in near}
        ),
        default=0,
    )


def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return a lane for each period (sorted by start), so that periods in one lane do not overlap."""
    free_at: list[int] = []
    numbers = []
    for start, end in spans:
        lane = next((index for index, until in enumerate(free_at) if until <= start), len(free_at))
        if lane == len(free_at):
            free_at.append(end)
        else:
            free_at[lane] = end
        numbers.append(lane)
    return numbers
