"""`client.homes`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Homes(Resource):
    """Home folders."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield home folders that match the filters (`team`, `pool`, `owner`, `archived`)."""
        return self._transport.list("/homes", filters)

    def get(self, home_id: int) -> JsonObject:
        return self._transport.get(path_of("homes", home_id))

    def keep(self, home_id: int) -> JsonObject:
        """Mark a home as used now."""
        return self._transport.post(path_of("homes", home_id, "keep"))

    def restore(self, home_id: int) -> JsonObject:
        """Restore an archived home."""
        return self._transport.post(path_of("homes", home_id, "restore"))
