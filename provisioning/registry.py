"""Finds a driver and its traits by its name. Drivers are imported only when a pool uses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from provisioning.driver import Driver
from provisioning.errors import MissingDependency, UnknownDriver
from provisioning.traits import Traits
from provisioning.types import PoolConfig

DRIVERS: dict[str, str] = {
    "local": "provisioning.drivers.local.driver:LocalDriver",
    "simulated": "provisioning.drivers.simulated.driver:SimulatedDriver",
    "simulated_cluster": "provisioning.drivers.simulated_cluster.driver:SimulatedClusterDriver",
}


def driver_class(name: str) -> type[Driver]:
    """Return the class registered under `name`. Raises `UnknownDriver` or `MissingDependency`."""
    module_name, _, attribute = _path_of(name).partition(":")
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


@cache
def traits_of(name: str) -> Traits:
    """Return the traits of a driver without loading it. Raises `UnknownDriver`."""
    package = _path_of(name).rpartition(".")[0]
    traits: Traits = import_module(f"{package}.traits").TRAITS
    return traits


def drivers_with(condition: Callable[[Traits], bool]) -> list[str]:
    """Return the names of the drivers whose traits meet `condition`, for queries."""
    return [name for name in DRIVERS if condition(traits_of(name))]


def _path_of(name: str) -> str:
    try:
        return DRIVERS[name]
    except KeyError:
        names = ", ".join(sorted(DRIVERS))
        raise UnknownDriver(f"Driver “{name}” not found. Choose one of: {names}.") from None
