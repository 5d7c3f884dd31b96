"""`client.tokens`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Tokens(Resource):
    """API tokens."""

    def rotate(self, token_id: str, *, overlap_hours: int) -> JsonObject:
        """Create a successor of a token, which expires after the overlap.

        Only this response has the new secret.
        """
        return self._transport.post(path_of("tokens", token_id, "rotate"), {"overlap_hours": overlap_hours})

    def renew(self) -> JsonObject:
        """Renew the job token of this client. Returns `expires_at`, `expires_in` and `renewable_until`."""
        return self._transport.post("/token-exchange/renew")

    def revoke(self, token_id: str) -> None:
        self._transport.post_without_answer(path_of("tokens", token_id, "revoke"))
