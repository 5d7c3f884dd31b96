"""The stages of a start as segments of one bar, in proportion to their duration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils import timezone

from portal.workspaces.selectors import StartStage

WIDTH = 1000
"""Length of the bar."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stage on the bar, in units of `WIDTH`. `state` is that of the stage."""

    key: str
    state: str
    start: int
    width: int


def segments(stages: Iterable[StartStage]) -> list[Segment]:
    """Return the stages that have begun, up to now; empty if they lasted no time.

    The end of a failed stage is not recorded, so a failed stage has no segment.
    """
    now = timezone.now()
    times = [
        (stage, stage.began_at, stage.ended_at or now)
        for stage in stages
        if stage.timed and stage.began_at is not None
    ]
    if not times:
        return []
    begin = min(began for _stage, began, _ended in times)
    total_s = (max(ended for _stage, _began, ended in times) - begin).total_seconds()
    if total_s <= 0:
        return []
    parts = []
    for stage, began, ended in times:
        start = round(WIDTH * (began - begin).total_seconds() / total_s)
        end = round(WIDTH * (ended - begin).total_seconds() / total_s)
        if end > start:
            parts.append(Segment(stage.key, stage.state, start, end - start))
    return parts
