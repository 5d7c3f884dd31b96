"""`client.queue`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Queue(Resource):
    """Workspaces that wait for capacity."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield waiting workspaces in the scheduler's order (`team`, `resource`)."""
        return self._transport.list("/queue", filters)
