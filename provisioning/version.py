"""Version of Berth, exchanged between both planes: they are compatible if major and minor are equal."""

from __future__ import annotations

VERSION = "0.1.0"


def is_compatible(version: str, own: str = VERSION) -> bool:
    """Return whether `version` has the same major and minor number."""
    return version.split(".")[:2] == own.split(".")[:2]
