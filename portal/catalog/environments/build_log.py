"""The log of a build as text and as a stream of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from portal.catalog.environments import selectors
from portal.catalog.environments.models import EnvironmentBuild
from portal.catalog.environments.serializers import BuildSerializer
from portal.common.errors import NotFound
from portal.common.events import stream
from portal.people.accounts.models import User

CHUNK = 64 * 1024


def text_of(build: EnvironmentBuild) -> str:
    """Return the end of the log. A first line “[…]” marks that the beginning was dropped."""
    return ("[…]\n" if build.log_dropped else "") + build.log


def follow(user: User, slug: str, build_id: UUID, may_read: Callable[[], bool]) -> stream.ReadEvents:
    """Return the reader of a stream: the build with the text added to its log since the last event.

    The id of an event is the number of sent log characters plus 1, because a build without a log has an event
    too. Every read checks again whether the user may see the build.
    """
    last: dict[str, Any] = {}

    def read(after: int) -> stream.Batch:
        if not may_read():
            return stream.Batch(over=True)
        try:
            build = selectors.build_by_id(selectors.environment_by_slug(user, slug), build_id)
        except NotFound:
            return stream.Batch(over=True)
        start = max(0, after - 1 - build.log_dropped)
        piece = build.log[start : start + CHUNK]
        reached = build.log_dropped + min(len(build.log), start + len(piece))
        data: dict[str, Any] = dict(BuildSerializer(build).data)
        changed = data != last.get("data")
        last["data"] = data
        left = len(build.log) > start + len(piece)
        if not (piece or changed):
            return stream.Batch(over=not build.open)
        event = {**data, "build": data["id"], "log": piece, "id": reached + 1}
        return stream.Batch([event], over=not build.open and not left)

    return read
