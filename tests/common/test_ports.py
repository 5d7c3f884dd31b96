"""Ports return the connected implementation, and raise without one."""

from __future__ import annotations

from typing import Protocol

import pytest
from django.core.exceptions import ImproperlyConfigured

from portal.common import ports
from portal.common.ports import Port


class Doorkeeper(Protocol):
    def admits(self, name: str) -> bool: ...


class Strict(Doorkeeper):
    def admits(self, name: str) -> bool:
        return False


@pytest.fixture
def doorkeeper(monkeypatch) -> Port[Doorkeeper]:
    monkeypatch.setattr(ports, "_ports", list(ports._ports))
    return Port[Doorkeeper]("Doorkeeper")


def test_port_returns_its_implementation(doorkeeper):
    doorkeeper.connect(Strict())
    ports.require_connected()
    assert doorkeeper().admits("alice") is False


def test_unconnected_port_is_named_in_the_error(doorkeeper):
    with pytest.raises(ImproperlyConfigured, match="Doorkeeper"):
        doorkeeper()
    with pytest.raises(ImproperlyConfigured, match="connected to: Doorkeeper"):
        ports.require_connected()
