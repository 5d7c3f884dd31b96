"""`client.quota_requests`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class QuotaRequests(Resource):
    """Requests for more quota."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield requests that match the filters (`state`, `team`, `requester`, …), newest first."""
        return self._transport.list("/quota-requests", filters)

    def get(self, request_id: str) -> JsonObject:
        return self._transport.get(path_of("quota-requests", request_id))

    def create(self, *, idempotency_key: str = "", **request: Any) -> JsonObject:
        """Request `amount` (base units) of `resource` for `team`, with `note`; optional: `kind`, `until`."""
        return self._transport.post_once(
            "/quota-requests", drop_empty(request), idempotency_key=idempotency_key
        )

    def approve(self, request_id: str, **decision: Any) -> JsonObject:
        """Approve a request; optional are `amount`, `until` and `note`."""
        return self._decide(request_id, "approve", decision)

    def deny(self, request_id: str, *, note: str) -> JsonObject:
        return self._decide(request_id, "deny", {"note": note})

    def cancel(self, request_id: str) -> JsonObject:
        return self._decide(request_id, "cancel", {})

    def _decide(self, request_id: str, verb: str, decision: Mapping[str, Any]) -> JsonObject:
        return self._transport.post(path_of("quota-requests", request_id, verb), drop_empty(decision))
