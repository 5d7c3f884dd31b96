"""Amounts, durations and times as people read them; the one place that turns numbers into words."""

from __future__ import annotations
