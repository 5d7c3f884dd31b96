"""A recorded session and its expected verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

KEPT = "kept"
"""Work in progress: neither warned nor stopped."""
STOPPED = "stopped"
"""Idle: stops when the limit is reached, not earlier."""
WAITS = "waits"
"""Only a command waits in it: kept for hours, then stopped as idle."""
FALSELY_KEPT = "falsely_kept"
"""Idle but kept: listed in docs/reclaim.md."""


@dataclass(frozen=True)
class Session:
    """`act` is called with a running workspace.

    `gpu` is the simulated utilisation in percent. With `browser`, `act` also gets a page of a real browser.
    With `goes_on`, the recording ends together with the action.
    """

    name: str
    template: str
    done: str
    expected: str
    act: Callable[..., None]
    gpu: int = 0
    browser: bool = False
    goes_on: bool = False
