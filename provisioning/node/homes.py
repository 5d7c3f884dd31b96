"""Gives the node's tasks access to the homes of a pool."""

from __future__ import annotations

from provisioning.driver import Driver
from provisioning.drivers.local.home_access import LocalHomes
from provisioning.traits import HomeStorage


def homes_of(driver: Driver) -> LocalHomes | None:
    """Return access to the homes on this node, or None if the pool keeps none on its nodes."""
    if driver.traits.homes is not HomeStorage.NODE:
        return None
    # So far all drivers with homes on nodes share this implementation.
    assert isinstance(driver, LocalHomes)
    return driver
