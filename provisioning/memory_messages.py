"""Reports of programs that the kernel ended for lack of memory in workspaces that continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from provisioning.types import LargeMib, Name, Whole

MAX_KILLS = 64
"""Workspaces in one message."""


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """Programs of a workspace that were ended since its last report.

    `count` is their number. `process` is the self-chosen name of the last one; empty if it is unknown.
    `machine`: the machine had no memory left, and the workspace had stayed within its `limit_mib`.
    """

    workspace_id: Name
    generation: Whole
    count: Whole
    limit_mib: LargeMib
    process: Name = ""
    machine: bool = False


@dataclass(frozen=True, slots=True)
class MemoryKills:
    """Reports of a node about its own workspaces."""

    pool: Annotated[str, Meta(max_length=120)]
    node: Name
    kills: Annotated[tuple[MemoryKill, ...], Meta(max_length=MAX_KILLS)]
