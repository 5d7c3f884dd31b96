"""A recorded session and its expected verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

KEPT = "kept"
"""Somebody's work: it is never warned nor stopped."""
STOPPED = "stopped"
"""Nothing is done in it: it stops when the limit is reached, and not before."""
WAITS = "waits"
"""Only a command waits in it: it is kept for hours, and then stops as one in which nothing is done."""
FALSELY_KEPT = "falsely_kept"
"""Nothing is done in it, and it is kept: listed in docs/reclaim.md."""


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
