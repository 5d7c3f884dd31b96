"""Typed ports: how a room asks those above it, which it does not know, and uses the answer.

A room declares a `Protocol` and a `Port` of it. A room above implements the protocol, and `portal.wiring`
connects the two. The implementation refuses by raising a `PortalError`, or returns what it decides as a
value; the room that asks writes it. What has happened already is a domain event
(`portal.common.domain_events`), not a question.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured

P = TypeVar("P")

_ports: list[Port[Any]] = []


class Port(Generic[P]):
    """The implementation of one protocol; call the port to get it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._implementation: P | None = None
        _ports.append(self)

    def connect(self, implementation: P) -> None:
        """Ask `implementation` from now on."""
        self._implementation = implementation

    @property
    def connected(self) -> bool:
        return self._implementation is not None

    def __call__(self) -> P:
        """Return the implementation. Raises `ImproperlyConfigured` without one."""
        if self._implementation is None:
            raise ImproperlyConfigured(f"no implementation is connected to the port {self.name}")
        return self._implementation


def require_connected() -> None:
    """Raise `ImproperlyConfigured` with the names of all ports that have no implementation."""
    missing = sorted(port.name for port in _ports if not port.connected)
    if missing:
        raise ImproperlyConfigured(f"no implementation is connected to: {', '.join(missing)}")
