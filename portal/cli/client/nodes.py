"""`client.nodes`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Nodes(Resource):
    """Machines of pools."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield nodes that match the filters (`name`, `pool`, …)."""
        return self._transport.list("/nodes", filters)

    def homes(self, node_id: str) -> JsonObject:
        """Return the number of homes on a node, the number that can be moved, and their possible targets."""
        return self._transport.get(path_of("nodes", node_id, "homes"))

    def move_homes(self, node_id: str, *, to: str) -> JsonObject:
        """Move all homes of a node to another one. Returns the evacuation."""
        return self._transport.post(path_of("nodes", node_id, "homes"), {"to": to})
