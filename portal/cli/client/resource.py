"""The base class of all REST resources."""

from __future__ import annotations

from portal.cli.client.transport import Transport


class Resource:
    """Base of a REST resource's operations."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
