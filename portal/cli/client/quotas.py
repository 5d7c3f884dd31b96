"""`client.quotas`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Quotas(Resource):
    """Limits of teams."""

    def usage(self, team: str) -> JsonObject:
        """Return a team's usage, queued and borrowed amounts and limits, by resource."""
        return self._transport.get(path_of("teams", team, "usage"))
