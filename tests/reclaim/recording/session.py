"""What is done in a workspace that is recorded, and the verdict that is right."""

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
    """`act` is called with a workspace that runs; `gpu` is the utilisation that is stood in, in percent.

    `browser`: `act` gets a page of a real browser on the workspace's origin as well. `goes_on`: the recording
    ends with what is done.
    """

    name: str
    template: str
    done: str
    expected: str
    act: Callable[..., None]
    gpu: int = 0
    browser: bool = False
    goes_on: bool = False
