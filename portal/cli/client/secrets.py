"""`client.secrets`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Secrets(Resource):
    """Secrets of the user, of a `team` or of a `template`."""

    def list(self, *, team: str = "", template: str = "") -> Iterator[JsonObject]:
        """Yield the names and metadata of secrets, without values."""
        return self._transport.list(_path(team, template))

    def put(self, name: str, *, team: str = "", template: str = "", **secret: Any) -> JsonObject:
        """Save `value`, or `vault_path` and `vault_key`, with `kind`, `description` and `everywhere`."""
        return self._transport.put(_path(team, template, name), drop_empty(secret))

    def delete(self, name: str, *, team: str = "", template: str = "") -> None:
        self._transport.delete(_path(team, template, name))


def _path(team: str, template: str, *segments: str) -> str:
    if team:
        return path_of("teams", team, "secrets", *segments)
    if template:
        return path_of("templates", template, "secrets", *segments)
    return path_of("me", "secrets", *segments)
