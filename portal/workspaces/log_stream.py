"""Streams a workspace's log from its node, from the reader's position on.

The id of a message encodes the start (`generation`), the position in bytes, and whether the log is complete.
A reader that resumes with this id gets no line twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from portal.common.errors import NotFound, Unavailable
from portal.common.events import stream
from portal.common.reasons.wording import message_of
from portal.people.accounts.models import User
from portal.workspaces import dispatch, selectors
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import LogPiece

POLL_S = 2.0
SILENT_S = 10.0
"""Seconds to wait before a node that did not answer is asked again."""
MAX_TRIES = 3
"""Attempts to read the rest of a stopped workspace's log before the stream gives up."""
_PLACES = 10**11
"""Larger than the size of any log in bytes."""
OVER = frozenset({State.STOPPED, State.FAILED, State.TERMINATED})
KEPT = frozenset({State.FAILED, State.TERMINATED})
"""States in which the node has no log, and the portal has stored the last lines."""

EXECUTOR = ThreadPoolExecutor(max_workers=8, thread_name_prefix="logs")
"""Separate threads for logs, so that unresponsive nodes do not block other streams."""


def number_of(generation: int, reached: int, *, over: bool) -> int:
    return (generation * _PLACES + min(max(reached, 0), _PLACES - 1)) * 2 + over


def parts_of(number: int) -> tuple[int, int, bool]:
    """Return generation, position in bytes, and whether the log is complete."""
    place, over = divmod(number, 2)
    return *divmod(place, _PLACES), bool(over)


def is_fully_read(workspace: Workspace, after: int) -> bool:
    """Return whether a reader at `after` has received everything."""
    generation, _reached, over = parts_of(after)
    return over and workspace.state in OVER and generation == workspace.generation


def follow(
    user: User, workspace_id: UUID, tail_lines: int, may_read: Callable[[], bool]
) -> stream.ReadEvents:
    """Return the read function of a stream. Each read checks again whether the user may see the workspace."""
    silent_until, failures = 0.0, 0

    def read(after: int) -> stream.Batch:
        nonlocal silent_until, failures
        if not may_read():
            return stream.Batch(over=True)
        try:
            workspace = selectors.workspace_by_id(user, workspace_id)
        except NotFound:
            return stream.Batch(over=True)
        if is_fully_read(workspace, after):
            return stream.Batch(over=True)
        if workspace.state in KEPT or (workspace.state in OVER and not _has_node(workspace)):
            lines = workspace.status.log_tail.splitlines()[-tail_lines:]
            return _batch_of(workspace, LogPiece("".join(f"{line}\n" for line in lines), 0), stored=True)
        if not _has_node(workspace) or time.monotonic() < silent_until:
            return stream.Batch()
        generation, reached, _ = parts_of(after)
        position = (reached if generation == workspace.generation else 0) if after else None
        over = workspace.state in OVER
        try:
            piece = dispatch.read_log_after(workspace, after=position, tail_lines=tail_lines, complete=over)
        except Unavailable as error:
            failures += 1
            silent_until = 0.0 if over else time.monotonic() + SILENT_S
            given_up = over and failures >= MAX_TRIES
            if not given_up and failures > 1:
                return stream.Batch()
            message = message_of(error.reason)
            if given_up:
                return _batch_of(workspace, LogPiece("", position or 0), message=message, over=True)
            # Keep the position, so that a reader without any lines still begins with the last lines.
            return _batch_of(workspace, LogPiece("", 0), message=message, number=after)
        failures = 0
        if not piece.text and not over:
            return stream.Batch()
        return _batch_of(workspace, piece, over=over and not piece.more)

    return read


def _has_node(workspace: Workspace) -> bool:
    """Return whether a node may have the workspace's log: not before the first start."""
    return workspace.pool is not None and workspace.generation > 0 and workspace.state != State.PENDING


def _batch_of(
    workspace: Workspace,
    piece: LogPiece,
    *,
    message: str = "",
    stored: bool = False,
    over: bool | None = None,
    number: int | None = None,
) -> stream.Batch:
    over = stored if over is None else over
    event: dict[str, Any] = {
        "id": number_of(workspace.generation, piece.reached, over=over) if number is None else number,
        "text": piece.text,
        "state": workspace.state,
        "kept": stored,
        "over": over,
        "message": message,
    }
    return stream.Batch([event], over=over, more=piece.more)
