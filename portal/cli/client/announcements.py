"""`client.announcements`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Announcements(Resource):
    """Announcements above every page."""

    def list(self) -> Iterator[JsonObject]:
        """Yield current announcements; for operators and auditors also scheduled and ended ones."""
        return self._transport.list("/announcements")

    def create(self, *, idempotency_key: str = "", **announcement: Any) -> JsonObject:
        """Create an announcement from `text`; optional are `kind`, `pool`, `begins_at` and `ends_at`."""
        return self._transport.post_once(
            "/announcements", drop_empty(announcement), idempotency_key=idempotency_key
        )

    def cancel(self, announcement_id: str) -> JsonObject:
        """End an announcement now. Idempotent."""
        return self._transport.post(path_of("announcements", announcement_id, "cancel"))
