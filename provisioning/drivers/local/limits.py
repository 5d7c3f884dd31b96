"""Limits that can be enforced on this machine, and those required with several users."""

from __future__ import annotations

import os

from provisioning.drivers.local.cgroups import CgroupHost
from provisioning.drivers.local.failures import HomesUnlimited, LimitsRequired
from provisioning.types import LimitedResource

REQUIRED = (LimitedResource.CPU, LimitedResource.MEMORY, LimitedResource.PROCESSES)
_WORDS = {
    LimitedResource.CPU: "CPU",
    LimitedResource.MEMORY: "memory",
    LimitedResource.PROCESSES: "the number of processes",
}
_TRUE = frozenset({"1", "true", "yes", "on"})
NO_HOME_LIMIT = (
    "Homes have no size limit, so one of several users could fill the disk, and no workspace starts here. "
    "Set BERTH_HOME_LIMIT_MIB for the portal, then restart the portal."
)
FIX = (
    "Run the node worker where it can create control groups: as a systemd service with Delegate=yes, in a "
    "systemd user session, or as root."
)


def several_users() -> bool:
    """Return whether several people share this machine (`BERTH_MULTIUSER`)."""
    return os.environ.get("BERTH_MULTIUSER", "").strip().lower() in _TRUE


def enforced_resources(host: CgroupHost, home_limit_mib: int) -> tuple[LimitedResource, ...]:
    """Return the resources that are limited per workspace; a home limit of 0 means no limit."""
    disk = (LimitedResource.DISK,) if home_limit_mib else ()
    return (*(resource for resource in REQUIRED if resource in host.holds), *disk)


def warning(host: CgroupHost) -> str:
    """Return which limits are missing, with a fix; empty if none is."""
    missing = [_WORDS[resource] for resource in REQUIRED if resource not in host.holds]
    if not missing:
        return ""
    names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    suffix = " Memory is limited only per process." if not host.version else ""
    return (
        f"One workspace can use this whole machine: {names} cannot be limited ({host.reason}).{suffix} {FIX}"
    )


def homes_warning(home_limit_mib: int) -> str:
    """Return a problem for an operator if several users share the machine without home limits."""
    return NO_HOME_LIMIT if several_users() and not home_limit_mib else ""


def require(host: CgroupHost, home_limit_mib: int) -> None:
    """Raise `LimitsRequired` or `HomesUnlimited` if one of several users could exhaust the machine."""
    if not several_users():
        return
    if problem := warning(host):
        raise LimitsRequired(f"Several users share this machine, so limits are required. {problem}")
    if not home_limit_mib:
        raise HomesUnlimited(NO_HOME_LIMIT)
