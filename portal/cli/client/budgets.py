"""`client.budgets`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Budgets(Resource):
    """Monthly budgets of teams."""

    def list(self) -> Iterator[JsonObject]:
        """Yield teams' budgets per month, and what they have spent, in hundredths of `currency`."""
        return self._transport.list("/budgets")
