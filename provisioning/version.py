"""The version of Berth, which both planes tell each other: they work together where major and minor agree."""

from __future__ import annotations

VERSION = "0.1.0"


def agrees(version: str, own: str = VERSION) -> bool:
    """Whether `version` has the same major and minor number."""
    return version.split(".")[:2] == own.split(".")[:2]
