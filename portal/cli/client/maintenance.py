"""`client.maintenance`"""

from __future__ import annotations

from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Maintenance(Resource):
    """Maintenance of the site or of a `pool`."""

    def get(self, *, pool: str = "") -> JsonObject:
        """Return current or planned maintenance. Raises `Missing` if there is none."""
        return self._transport.get(_path(pool))

    def set(self, *, pool: str = "", **maintenance: Any) -> JsonObject:
        """Set maintenance with `reason`, `ends_at` and, optionally, `begins_at`."""
        return self._transport.put(_path(pool), drop_empty(maintenance))

    def end(self, *, pool: str = "") -> None:
        """End current or cancel planned maintenance. Raises `Missing` if there is none."""
        self._transport.delete(_path(pool))


def _path(pool: str) -> str:
    return path_of("pools", pool, "maintenance") if pool else path_of("maintenance")
