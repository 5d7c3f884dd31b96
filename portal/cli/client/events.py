"""`client.events`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Events(Resource):
    """The event feed."""

    def list(self, **filters: Any) -> Iterator[JsonObject]:
        """Yield events visible to the user, oldest first (`after`, `type`, `team`, …)."""
        return self._transport.list("/events", filters)

    def stream(self, *, after: int, **filters: Any) -> Iterator[JsonObject]:
        """Yield events after event `after` as they happen.

        Ends when the portal ends the stream: call it again with the id of the last event.
        """
        return self._transport.stream("/events/stream", after=after, params=filters)
