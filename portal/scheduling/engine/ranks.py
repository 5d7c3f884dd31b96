"""Keys of pending requests: their shape, and their rank in the queue."""

from __future__ import annotations

from portal.scheduling.engine.model import Workload

Shape = tuple[str, str, str, tuple[tuple[str, int], ...]]
Key = tuple[int, int, int, int, str, int]
"""Band, negative priority, number of the back-fill reservation, due time in ms, id, and duration in seconds,
which does not affect the order because ids are unique.
"""
Rank = tuple[int, int, int, int, str]
"""A key whose due time includes the delay of the team's share."""
NOMINATED, OVERDUE, USUAL = 0, 1, 2
UNRESERVED = 1 << 60


def shape_of(workload: Workload, capped: bool) -> Shape:
    """Return everything that determines whether a request fits, as a key: equal shapes fit alike."""
    user = workload.user if capped else ""
    place = workload.place
    if workload.fallbacks:
        others = "|".join(f"{other.place}{sorted(other.amounts.items())}" for other in workload.fallbacks)
        place = f"{place}|{workload.start_within_s}|{others}"
    return (workload.team, user, place, tuple(sorted(workload.amounts.items())))


def rank_of(key: Key, delay_ms: int) -> Rank:
    """Return the rank of a key for a team with this delay."""
    band, priority, usual, due_ms, name, _ = key
    return (band, priority, usual, due_ms + delay_ms if usual == UNRESERVED else due_ms, name)


def takes_turns(key: Key) -> bool:
    """Return whether members can take turns with this request: it is neither nominated nor overdue."""
    return key[0] == USUAL
