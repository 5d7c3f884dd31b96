"""`client.quotas`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Quotas(Resource):
    """Limits of teams."""

    def usage(self, team: str) -> JsonObject:
        """What a team uses, waits for, borrows and may have, by resource."""
        return self._transport.get(path_of("teams", team, "usage"))
