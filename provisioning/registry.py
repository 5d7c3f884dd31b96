"""Finds a driver by its name. Drivers are imported only when a pool uses them."""

from __future__ import annotations

from importlib import import_module

from provisioning.driver import Driver
from provisioning.errors import MissingDependency, UnknownDriver
from provisioning.types import PoolConfig

DRIVERS: dict[str, str] = {
    "local": "provisioning.drivers.local.driver:LocalDriver",
    "simulated": "provisioning.drivers.simulated.driver:SimulatedDriver",
}


def driver_class(name: str) -> type[Driver]:
    """Return the class registered under `name`. Raises `UnknownDriver` or `MissingDependency`."""
    try:
        path = DRIVERS[name]
    except KeyError:
        names = ", ".join(sorted(DRIVERS))
        raise UnknownDriver(f"Driver “{name}” not found. Choose one of: {names}.") from None
    module_name, _, attribute = path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"The {name} driver needs the Python module “{error.name}”. Install it on this host.",
            detail=str(error),
        ) from error
    driver: type[Driver] = getattr(module, attribute)
    return driver


def driver_for(pool: PoolConfig) -> Driver:
    """Return a driver that operates `pool`."""
    return driver_class(pool.driver)(pool)
