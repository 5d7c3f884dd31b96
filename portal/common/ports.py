"""Typed ports: how a package asks packages above it, which it must not import.

A package declares a `Protocol` and a `Port` of it. A package above implements the protocol, and
`portal.wiring` connects them. The implementation returns its decision as a value or refuses by raising a
`PortalError`; the asking package does the writes. For facts, use a domain event
(`portal.common.domain_events`).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured

P = TypeVar("P")

_ports: list[Port[Any]] = []


class Port(Generic[P]):
    """Holds the implementation of a protocol. Call the port to get it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._implementation: P | None = None
        _ports.append(self)

    def connect(self, implementation: P) -> None:
        """Set the implementation."""
        self._implementation = implementation

    @property
    def connected(self) -> bool:
        return self._implementation is not None

    def __call__(self) -> P:
        """Return the implementation. Raises `ImproperlyConfigured` if none is connected."""
        if self._implementation is None:
            raise ImproperlyConfigured(f"no implementation is connected to the port {self.name}")
        return self._implementation


def require_connected() -> None:
    """Raise `ImproperlyConfigured` with the names of all unconnected ports."""
    missing = sorted(port.name for port in _ports if not port.connected)
    if missing:
        raise ImproperlyConfigured(f"no implementation is connected to: {', '.join(missing)}")
