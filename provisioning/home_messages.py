"""Commands and answers for moving homes between machines and for archives of homes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import Failure, PoolConfig

Name = Annotated[str, Meta(max_length=255)]
Amount = Annotated[int, Meta(ge=0, le=1 << 62)]
Words = Annotated[str, Meta(max_length=2000)]


class MoveCommand(StrEnum):
    """Command of a home move."""

    OFFER = "offer"
    """Old machine: allow the holder of the ticket to read the home for a while."""
    FETCH = "fetch"
    """New machine: copy for some seconds, and put the home in place once it is complete."""
    DISCARD = "discard"
    """New machine: delete the partial copy."""
    REMOVE = "remove"
    """Old machine: delete the home, which has moved."""


class MovePhase(StrEnum):
    """Progress of the new machine."""

    COPYING = "copying"
    CHECKING = "checking"
    PLACED = "placed"


@dataclass(frozen=True, slots=True)
class HomeMoveOrder:
    """One command of a move. `ticket` authorizes reading the home from `host`; offers have its digest."""

    move: Name
    lease: Name
    do: MoveCommand
    pool: PoolConfig
    team: Name
    owner: Name
    expires_at: float
    digest: Name = ""
    lifetime_s: float = 0.0
    ticket: Name = ""
    host: Name = ""


@dataclass(frozen=True, slots=True)
class HomeMoved:
    """Result of a `HomeMoveOrder`. `done` if the offer, the deletion or the complete copy is finished.

    `bytes_done` and `entries_done` have arrived, out of the totals; totals are 0 until known. `failure`
    is the reason of a failed order; if the disk is too small, with `needed` and `free` bytes.
    """

    move: Name
    lease: Name
    do: MoveCommand
    done: bool = False
    phase: MovePhase = MovePhase.COPYING
    bytes_done: Amount = 0
    bytes_total: Amount = 0
    entries_done: Amount = 0
    entries_total: Amount = 0
    left_out: Amount = 0
    failure: Failure | None = None
    needed: Amount = 0
    free: Amount = 0


class ArchiveCommand(StrEnum):
    """Command of a home archive, for the node that has the home."""

    MAKE = "make"
    """Create an archive, or continue."""
    RESTORE = "restore"
    """Restore the home from an archive, or continue, and put it in place once it is complete."""
    CLEAR = "clear"
    """Delete partial files and the home that was replaced."""
    DELETE = "delete"
    """Delete an archive."""
    EMPTY = "empty"
    """Replace the archived home by an empty one, if it has not changed."""
    LEAVE = "leave"
    """Cancel emptying the home unless it is done; delete partial files."""


@dataclass(frozen=True, slots=True)
class HomeArchiveOrder:
    """One command of an archive. `job` stays the same until the operation has finished."""

    archive: Name
    job: Name
    lease: Name
    do: ArchiveCommand
    pool: PoolConfig
    team: Name
    owner: Name
    expires_at: float
    most_bytes: Amount = 0
    empties: bool = False
    """For MAKE: the home is emptied afterwards."""


@dataclass(frozen=True, slots=True)
class HomeArchived:
    """Result of a `HomeArchiveOrder`: `done`, or progress in bytes before compression.

    A finished archive has `size_bytes` on disk, bytes and entries of the home, and the number of omitted
    pipes, sockets and devices. `placed`: the restored or empty home is in place. `refused` is the reason of a
    refusal: `disk_full` (`free` bytes are available), `archives_full`, `unreadable` (the path `about`),
    `changed` (`about`, since the archive was begun), `bad_stream` or `not_found`; `failure` is any other
    error.
    """

    archive: Name
    lease: Name
    do: ArchiveCommand
    done: bool = False
    placed: bool = False
    checking: bool = False
    bytes_done: Amount = 0
    size_bytes: Amount = 0
    home_bytes: Amount = 0
    entries: Amount = 0
    left_out: Amount = 0
    refused: Name = ""
    about: Words = ""
    free: Amount = 0
    failure: Failure | None = None
