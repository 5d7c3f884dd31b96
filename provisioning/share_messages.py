"""What a node tells of workspaces that take more of a shared GPU's memory than their part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import Name, Whole, Word

PROVIDES_SHARES = "gpu_shares"
"""What a node provides that holds workspaces to their part of a GPU's memory."""


class ShareStep(StrEnum):
    """What the node has seen, or done."""

    OVER = "over"
    """It holds more than its part; nothing has been done yet."""
    BACK = "back"
    """It is within its part again."""
    ASKED = "asked"
    """A process was asked to end (SIGTERM)."""
    KILLED = "killed"
    """A process was ended (SIGKILL)."""
    UNKNOWN = "unknown"
    """The driver does not tell how much a process holds: nothing is held to its part there."""


@dataclass(frozen=True, slots=True)
class ShareNote:
    """One step with one workspace on one device. `process` is its program's name, which it chooses itself.

    `ends_in_s` is after how many seconds, at the earliest, a process is asked to end (of OVER).
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
    """What a node's guard tells, of workspaces of its own alone."""

    pool: Annotated[str, Meta(max_length=120)]
    node: Name
    notes: Annotated[tuple[ShareNote, ...], Meta(max_length=64)]
