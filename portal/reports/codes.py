"""Codes of reports."""

from __future__ import annotations

from enum import StrEnum


class ReportCode(StrEnum):
    """Errors about reports."""

    BREAKDOWN_UNKNOWN = "breakdown_unknown"
    DAYS_OUT_OF_RANGE = "days_out_of_range"
