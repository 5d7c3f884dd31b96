"""`client.flavors`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Flavors(Resource):
    """Workspace sizes."""

    def list(self) -> Iterator[JsonObject]:
        return self._transport.list("/flavors")
