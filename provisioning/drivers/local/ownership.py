"""Owners of homes, and device access of users other than the node worker's (`uids.py`)."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from provisioning.drivers.local import processes, state
from provisioning.drivers.local.failures import HomeInUse
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.drivers.local.uids import Uids
from provisioning.errors import MissingDependency
from provisioning.types import DeviceInfo
from provisioning.workspace_uids import VARIABLE


class HomeIdentity(Protocol):
    """Something with a home: a workspace or a file server."""

    @property
    def owner(self) -> str: ...

    @property
    def home_key(self) -> str: ...


def owner_of(base: Path, instance: str, spec: HomeIdentity, sandbox: SandboxProbe) -> int:
    """Return the user id for the home. Raises `ProvisioningError` or `OSError`.

    A home keeps its owner while in use, so concurrent starts run as the same user.
    """
    uid = state.NODE_USER if sandbox.uids is None else Uids(base, sandbox.uids).uid_of(spec.owner)
    for name in state.names(base):
        folder = state.WorkspaceDir(base, name)
        record = folder.record()
        if record is None or record.uid == uid or record.home != spec.home_key:
            continue
        if not folder.alive() and not processes.scan(instance, name, spares=folder.claimed()):
            continue
        if record.uid == state.NODE_USER:
            return record.uid
        raise HomeInUse(
            "Another workspace of this user still runs with a separate user ID, which this node no longer "
            f"supports. Stop that workspace first. {sandbox.uids_reason}".strip()
        )
    return uid


def require_open(devices: Iterable[DeviceInfo]) -> None:
    """Raise `MissingDependency` if users other than this one cannot open a device."""
    for node in dict.fromkeys(node for device in devices for node in device.nodes):
        if not Path(node).stat().st_mode & stat.S_IROTH:
            raise MissingDependency(
                f"Workspaces run as separate users here, which cannot open {node}. Set "
                f"NVreg_DeviceFileMode=0666 for the NVIDIA driver, or {VARIABLE}=none on the node."
            )
