"""Account of a node's gateway if root runs the node (docs/adr/0076-door-account.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from provisioning.host.folder import NodeFolder
from provisioning.service import door_account, door_uid
from provisioning.service.confinement import ServiceNeeds
from provisioning.service.door_account import AccountUnusable, DoorAccount

ROOTS = "BERTH_SERVICES_UID"
"""Variable whose value 0 selects root, as for the portal's services."""


def choose(folder: NodeFolder, settings: Mapping[str, str], caddy: Path, port: int) -> DoorAccount | None:
    """Return the gateway's account after testing it; None if the gateway runs as the current user.

    The gateway's configuration must already be written. Raises `AccountUnusable` or `OSError`.
    """
    if os.geteuid() != 0:
        return None
    if settings.get(ROOTS, "").strip() == "0":
        door_account.restrict_sockets(folder.local)
        return None
    try:
        uid = door_uid.number(settings)
    except ValueError as error:
        raise AccountUnusable(str(error)) from error
    homes = Path(settings.get("BERTH_HOMES_DIR") or folder.home / "homes").expanduser()
    covered = tuple(path for path in (folder.home, homes) if path.is_dir())
    account = DoorAccount(uid, folder.local, caddy, covered)
    account.attempt(folder.gateway_config, _files(folder), settings, (port,))
    account.grant_access()
    return account


def needs(folder: NodeFolder, account: DoorAccount, environ: Mapping[str, str]) -> ServiceNeeds:
    """Return the paths that the gateway may read and write."""
    return account.needs(_files(folder), environ)


def _files(folder: NodeFolder) -> tuple[Path, ...]:
    return folder.gateway_config, folder.authority, folder.certificate, folder.key
