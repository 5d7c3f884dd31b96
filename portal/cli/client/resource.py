"""The base class of all resources."""

from __future__ import annotations

from portal.cli.client.transport import Transport


class Resource:
    """The operations of one resource of the REST API."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
