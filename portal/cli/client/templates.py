"""`client.templates`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Templates(Resource):
    """Workspace templates."""

    def list(self) -> Iterator[JsonObject]:
        return self._transport.list("/templates")
