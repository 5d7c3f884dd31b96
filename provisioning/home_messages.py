"""Orders and answers about a home that goes from one machine to another, and about its archives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import Failure, PoolConfig

Name = Annotated[str, Meta(max_length=255)]
Amount = Annotated[int, Meta(ge=0, le=1 << 62)]
Words = Annotated[str, Meta(max_length=2000)]


class MoveDo(StrEnum):
    """What a node is asked for."""

    OFFER = "offer"
    """The old machine: let who has the ticket read the home for a while."""
    FETCH = "fetch"
    """The new machine: read on for some seconds, and put the home in its place when all of it is there."""
    DISCARD = "discard"
    """The new machine: take away what has come."""
    REMOVE = "remove"
    """The old machine: take away the home, which is elsewhere now."""


class MovePhase(StrEnum):
    """How far the new machine is."""

    COPYING = "copying"
    CHECKING = "checking"
    PLACED = "placed"


@dataclass(frozen=True, slots=True)
class HomeMoveOrder:
    """One command about a move. `ticket` reads the home by the name `host`; an offer has its digest alone."""

    move: Name
    lease: Name
    do: MoveDo
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
    """What became of an order. `done` of an offer, of what was to be taken away, or of the whole copy.

    `bytes_` and entries are what is here, of how many; 0 of 0 where that is not known yet. Of what was
    refused `failure` has the reason, and for want of room `needed` and `free` bytes.
    """

    move: Name
    lease: Name
    do: MoveDo
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


class ArchiveDo(StrEnum):
    """What the node is asked for that has a home."""

    MAKE = "make"
    """Make an archive, or go on with that."""
    RESTORE = "restore"
    """Make the home anew from an archive, or go on with that, and put it in its place when it is whole."""
    CLEAR = "clear"
    """Take away what is half made, and the home that was replaced."""
    DELETE = "delete"
    """Take away an archive."""
    EMPTY = "empty"
    """Put an empty home in the place of the one of which this is the archive, if it is as it was."""
    LEAVE = "leave"
    """Do not empty it any more, unless that is done; what is half made goes."""


@dataclass(frozen=True, slots=True)
class HomeArchiveOrder:
    """One command about an archive. `job` is the same until what was asked for has come to its end."""

    archive: Name
    job: Name
    lease: Name
    do: ArchiveDo
    pool: PoolConfig
    team: Name
    owner: Name
    expires_at: float
    most_bytes: Amount = 0
    empties: bool = False
    """Of what is made: the home is emptied after it."""


@dataclass(frozen=True, slots=True)
class HomeArchived:
    """What became of an order: whether it is `done`, and else how far it is, in bytes before compression.

    Of an archive that is done `size_bytes` on the disk, the bytes and entries of the home, and how many
    pipes, sockets and devices are not in it. `placed` says that the home is the one of the archive, or the
    empty one. `refused` says why it cannot be done: `disk_full` (of the disk `free` bytes may be used),
    `archives_full`, `unreadable` (the path `about`), `changed` (`about`, since the archive was begun),
    `bad_stream` or `not_found`; `failure` what went wrong otherwise.
    """

    archive: Name
    lease: Name
    do: ArchiveDo
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
