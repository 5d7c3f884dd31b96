"""`client.home_evacuations`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class HomeEvacuations(Resource):
    """Moves of all home folders from one node to another."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield moves that match the filters (`from_node`, `pool`, `state`), newest first."""
        return self._transport.list("/home-evacuations", filters)

    def get(self, evacuation_id: str) -> JsonObject:
        return self._transport.get(path_of("home-evacuations", evacuation_id))
