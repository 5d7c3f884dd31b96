"""Writes lines of CSV files in which spreadsheets read no cell as a formula."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of a text that a spreadsheet reads as a formula."""


def cell(value: Any) -> str | int | float:
    """Return the value of a cell: numbers unchanged, "" for None, JSON for a mapping, else text.

    A text that begins like a formula gets a leading apostrophe.
    """
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def line(values: Iterable[Any]) -> str:
    """Return one line with its line end."""
    text = io.StringIO()
    csv.writer(text).writerow([cell(value) for value in values])
    return text.getvalue()
