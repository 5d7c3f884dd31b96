"""`client.orphans`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Orphans(Resource):
    """Processes and folders on nodes without an owner."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield existing and recently removed orphans (`pool`, `node`, `kind`, `state`)."""
        return self._transport.list("/orphans", filters)

    def get(self, orphan_id: str) -> JsonObject:
        return self._transport.get(path_of("orphans", orphan_id))

    def delete(self, orphan_id: str, *, confirm: str = "") -> JsonObject:
        """Ask its node to delete an orphan. For a home folder, `confirm` has to be its name."""
        return self._transport.post(path_of("orphans", orphan_id, "delete"), drop_empty({"confirm": confirm}))
