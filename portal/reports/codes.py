"""Codes of reports."""

from __future__ import annotations

from enum import StrEnum


class EfficiencyCode(StrEnum):
    """Hints about what a workspace makes of its GPUs."""

    NONE_USED = "no_gpu_used"
    SOME_UNUSED = "some_gpus_unused"
    SMALLER_WOULD_DO = "smaller_gpu_would_do"
    MOSTLY_IDLE = "gpus_mostly_idle"


class ReportCode(StrEnum):
    """Refusals about reports."""

    BREAKDOWN_UNKNOWN = "breakdown_unknown"
    DAYS_OUT_OF_RANGE = "days_out_of_range"
