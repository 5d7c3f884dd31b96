"""`client.rebalance_proposals`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class RebalanceProposals(Resource):
    """Proposals to move running work."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield proposals that match the filter (`state`), newest first."""
        return self._transport.list("/rebalance-proposals", filters)

    def apply(self, proposal_id: str) -> JsonObject:
        """Ask all workspaces of a proposal to move, or none of them."""
        return self._transport.post(path_of("rebalance-proposals", proposal_id, "apply"))
