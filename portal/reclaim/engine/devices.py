"""Computes how long each GPU of a workspace has been unused, from one observation per minute."""

from __future__ import annotations

from collections.abc import Sequence

UNUSED_S = 900.0
"""Seconds after which a GPU is listed as unused."""


def unused_since(
    percents: Sequence[int | None],
    before: Sequence[float | None],
    *,
    at_s: float,
    before_s: float,
    max_gap_s: float,
) -> tuple[float | None, ...]:
    """Return since when each GPU has been at 0 % in every observation; None: used, or not measured.

    `before` is the result of the previous observation at `before_s`. Longer gaps restart the time.
    """
    known = len(before) == len(percents) and 0 < at_s - before_s <= max_gap_s
    since: list[float | None] = []
    for place, percent in enumerate(percents):
        earlier = before[place] if known else None
        since.append((at_s if earlier is None else earlier) if percent == 0 else None)
    return tuple(since)


def unused_count(since: Sequence[float | None], at_s: float, min_s: float = UNUSED_S) -> int:
    """Return how many GPUs have been unused for `min_s` while another one is in use; 0 if all are unused."""
    unused = sum(begin is not None and at_s - begin >= min_s for begin in since)
    return unused if unused < len(since) else 0
