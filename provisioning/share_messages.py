"""Reports of workspaces that exceed their share of a shared GPU's memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import Name, Whole, Word

PROVIDES_SHARES = "gpu_shares"
"""Provided by nodes that enforce shares of GPU memory."""


class ShareStep(StrEnum):
    """What the node has observed or done."""

    OVER = "over"
    """The workspace exceeds its share; no action yet."""
    BACK = "back"
    """The workspace is within its share again."""
    ASKED = "asked"
    """A process got SIGTERM."""
    KILLED = "killed"
    """A process got SIGKILL."""
    UNKNOWN = "unknown"
    """The driver does not report memory per process, so shares are not enforced."""


@dataclass(frozen=True, slots=True)
class ShareNote:
    """One step concerning a workspace on a device. `process` is its program's self-chosen name.

    `ends_in_s` is the minimum time in seconds until a process is asked to end (for OVER).
    """

    workspace_id: Name
    generation: Whole
    uuid: Name
    step: Word
    used_mib: Whole
    part_mib: Whole
    process: Name = ""
    ends_in_s: Whole = 0


@dataclass(frozen=True, slots=True)
class ShareNotes:
    """Notes of a node's guard about its own workspaces."""

    pool: Annotated[str, Meta(max_length=120)]
    node: Name
    notes: Annotated[tuple[ShareNote, ...], Meta(max_length=64)]
