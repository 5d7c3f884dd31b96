"""User ID of the doors. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "BERTH_DOORS_UID"
DOORS_UID = 199_998
"""Just below the user ID of the portal's services."""
LEAST_UID, HIGHEST_UID = 1000, 2**31 - 2


def number(environ: Mapping[str, str]) -> int:
    """Return the user ID set by `environ`, or the default. Raises `ValueError` if it is out of range."""
    text = environ.get(VARIABLE, "").strip() or str(DOORS_UID)
    if not (text.isascii() and text.isdecimal() and LEAST_UID <= int(text) <= HIGHEST_UID):
        raise ValueError(f"{VARIABLE} is “{text}”, which is not a user ID from {LEAST_UID} to {HIGHEST_UID}")
    return int(text)
