"""`client.environments`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Environments(Resource):
    """Software environments, their versions and builds."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield environments visible to the user that match the filters (`search`, `team`, …)."""
        return self._transport.list("/environments", filters)

    def get(self, slug: str) -> JsonObject:
        return self._transport.get(path_of("environments", slug))

    def create(self, **environment: Any) -> JsonObject:
        """Create and build an environment: `name` and `source`; optional are `slug`, `team` and others."""
        return self._transport.post("/environments", drop_empty(environment))

    def build(self, slug: str, **source: str) -> JsonObject:
        """Build a new version from `source`, or the newest version again. Returns the version."""
        return self._transport.post(path_of("environments", slug, "builds"), drop_empty(source))

    def versions(self, slug: str) -> Iterator[JsonObject]:
        """Yield the versions of an environment, newest first."""
        return self._transport.list(path_of("environments", slug, "versions"))

    def version(self, slug: str, number: int) -> JsonObject:
        return self._transport.get(path_of("environments", slug, "versions", number))

    def builds(self, slug: str, number: int) -> Iterator[JsonObject]:
        """Yield the builds of a version, newest first."""
        return self._transport.list(path_of("environments", slug, "builds"), {"version": str(number)})

    def build_log(self, slug: str, build_id: str) -> str:
        """Return the end of a build's output."""
        return self._transport.get_text(path_of("environments", slug, "builds", build_id, "log"))
