"""Which limits hold on this machine, and what several people who share it cannot do without."""

from __future__ import annotations

import os

from provisioning.drivers.local.cgroups import CgroupHost
from provisioning.drivers.local.failures import LimitsRequired
from provisioning.types import LimitedResource

REQUIRED = (LimitedResource.CPU, LimitedResource.MEMORY, LimitedResource.PROCESSES)
_WORDS = {
    LimitedResource.CPU: "CPU",
    LimitedResource.MEMORY: "memory",
    LimitedResource.PROCESSES: "the number of processes",
}
_TRUE = frozenset({"1", "true", "yes", "on"})
FIX = (
    "Run the node worker where it may make control groups: as a systemd service with Delegate=yes, in a user "
    "session of systemd, or as root."
)


def several_users() -> bool:
    """Whether several people share this machine (`BERTH_MULTIUSER`)."""
    return os.environ.get("BERTH_MULTIUSER", "").strip().lower() in _TRUE


def held(host: CgroupHost) -> tuple[LimitedResource, ...]:
    """What no workspace can take more of than it was given."""
    return tuple(each for each in REQUIRED if each in host.holds)


def warning(host: CgroupHost) -> str:
    """What is not limited and what to do about it; empty where all is."""
    missing = [_WORDS[each] for each in REQUIRED if each not in host.holds]
    if not missing:
        return ""
    said = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    also = " Of memory, each process alone is limited." if not host.version else ""
    return (
        f"One workspace can take all of this machine: {said} cannot be limited ({host.reason}).{also} {FIX}"
    )


def require(host: CgroupHost) -> None:
    """Raise `LimitsRequired` where several people share the machine and one could take all of it."""
    if several_users() and (complaint := warning(host)):
        raise LimitsRequired(f"Several users share this machine, so limits are required. {complaint}")
