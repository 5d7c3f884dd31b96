"""`berth node leave`: the portal lets this machine go; homes and environments stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provisioning.drivers.local import home_mount, processes, state
from provisioning.host import membership, programs, unit
from provisioning.host.door import Refused
from provisioning.host.folder import NodeFolder
from provisioning.host.rotation import ENDED, door_of
from provisioning.service import instance_lock
from provisioning.service.console import Console, Problem


def leave(folder: NodeFolder, environ: Mapping[str, str], console: Console, *, forget: bool) -> None:
    """Leave; with `forget` without asking the portal, which then has to be told. Raises `Problem`."""
    if forget:
        _check_nothing_runs(folder)
    else:
        known = membership.load(folder)
        membership.check_user(known)
        with console.step("Portal") as step:
            step.update("leaving")
            try:
                door_of(folder, known).leave()
                step.result = f"{known.name} has left pool {known.answer.pool}"
            except Refused as refused:
                if refused.code not in ENDED:
                    raise
                # It knows this node no more: what is here is of no use.
                step.result = f"did not know {known.name} any more"
    found = unit.find(environ)
    if not isinstance(found, str) and found.exists():
        with console.step("Service") as step:
            step.update("stopping")
            found.remove()
            step.result = "stopped and removed"
    if instance_lock.is_held(folder.run):
        console.say("  ! `berth node run` is still running here, and of no use now: end it.")
    try:
        membership.forget(folder)
        folder.gateway_config.unlink(missing_ok=True)
        homes = programs.settings(folder).get("BERTH_HOMES_DIR") or str(folder.home / "homes")
        home_mount.release(Path(homes), folder.local / home_mount.LOCK)
    except OSError as error:
        raise Problem(
            f"{error.filename or folder.home} cannot be removed ({error.strerror}).",
            "Run this as the user who joined it.",
        ) from error
    console.say(f"  ✓ Keys are removed. Homes and environments stay in {folder.home}.")
    if forget:
        console.say("  · The portal was not told: revoke and remove the machine on its pool's page.")


def _check_nothing_runs(folder: NodeFolder) -> None:
    found = {
        owned.workspace
        for owned in processes.scan(folder.driver_instance, spares=state.claimed(folder.local))
        if owned.workspace
    }
    if found:
        raise Problem(
            f"{len(found)} workspace{'s run' if len(found) > 1 else ' runs'} here.",
            "Stop them on the portal first; end them here with: kill "
            + " ".join(
                str(owned.pid)
                for owned in processes.scan(folder.driver_instance, spares=state.claimed(folder.local))
                if owned.workspace
            ),
        )
