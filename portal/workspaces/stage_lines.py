"""The stages of a start for the workspace's page, with their shares of the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.workspaces.selectors import StartStage


@dataclass(frozen=True, slots=True)
class StageLine:
    """A stage, and its share of the total time in percent; None if it has no duration.

    The end of a failed stage is not recorded, so it has no share.
    """

    stage: StartStage
    share_pct: int | None


def lines(stages: Sequence[StartStage]) -> list[StageLine]:
    """Return the stages in order, with their shares up to now."""
    seconds = [max(0.0, stage.seconds or 0.0) if stage.timed else None for stage in stages]
    total_s = sum(value for value in seconds if value is not None)
    return [
        StageLine(stage, None if value is None or not total_s else round(100 * value / total_s))
        for stage, value in zip(stages, seconds, strict=True)
    ]
