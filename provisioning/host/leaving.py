"""`berth node leave`: removes this machine from the portal; homes and environments are kept."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from provisioning.drivers.local import home_mount, processes, state
from provisioning.host import membership, programs, unit
from provisioning.host.door import Door, NodeWorkspaces, RequestRefused
from provisioning.host.ending import end_all
from provisioning.host.folder import NodeFolder
from provisioning.host.rotation import MEMBERSHIP_LOST, door_of
from provisioning.service import instance_lock
from provisioning.service.console import Console, Problem, Step

WAIT_S = 1800.0
POLL_INTERVAL_S = 2.0
SHOWN = 5
HAS_WORKSPACES = "node_has_workspaces"


def leave(
    folder: NodeFolder,
    environ: Mapping[str, str],
    console: Console,
    *,
    forget: bool,
    workspaces: str = "",
    wait_s: float = WAIT_S,
) -> None:
    """Leave the portal. With `forget`, leave only locally: the portal then has to be updated manually.

    Raises `Problem`.

    `workspaces` selects what happens to workspaces on this node: `drain` (they are asked to move away, with
    notice) or `stop`; empty rejects the request and names them. Waits up to `wait_s` for them.
    """
    if forget:
        if workspaces == "stop":
            _end_local_workspaces(folder, environ, console)
        _check_nothing_runs(folder)
    else:
        identity = membership.load(folder)
        membership.check_user(identity)
        with console.step("Portal") as step:
            step.update("leaving")
            try:
                _leave(door_of(folder, identity), step, workspaces, wait_s)
                step.result = f"{identity.name} has left pool {identity.answer.pool}"
            except RequestRefused as refused:
                if refused.code not in MEMBERSHIP_LOST:
                    raise
                # The portal no longer knows this node, so its local identity is useless.
                step.result = f"no longer had {identity.name}"
        if workspaces:
            # The portal's workspaces have ended; end those that it does not know.
            _end_local_workspaces(folder, environ, console)
    service = unit.find(environ)
    if not isinstance(service, str) and service.exists():
        with console.step("Service") as step:
            step.update("stopping")
            service.remove()
            step.result = "stopped and removed"
    if instance_lock.is_held(folder.run):
        console.say("  ! `berth node run` is still running here. Stop it.")
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
    console.say(f"  ✓ Keys deleted. Homes and environments stay in {folder.home}.")
    if forget:
        console.say("  · The portal was not notified. Revoke and remove the machine on its pool's page.")


def _leave(door: Door, step: Step, workspaces: str, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while True:
        try:
            remaining = door.leave(workspaces=workspaces)
        except RequestRefused as refused:
            if refused.code != HAS_WORKSPACES:
                raise
            raise _has_workspaces(door, refused) from refused
        if remaining is None:
            return
        step.update(f"waiting for {_count_text(remaining.placed)}: {_workspace_names(remaining)}")
        if time.monotonic() > until:
            raise Problem(
                f"{_count_text(remaining.placed)} still here: {_workspace_names(remaining)}. "
                "The node starts nothing new.",
                "Run the same command again to continue, or return the node to service on its page.",
            )
        time.sleep(POLL_INTERVAL_S)


def _has_workspaces(door: Door, refused: RequestRefused) -> Problem:
    """Return the refusal with the names of the workspaces and the options."""
    try:
        names = _workspace_names(door.workspaces())
        listing = f" Workspaces: {names}." if names else ""
    except Problem:
        listing = ""
    return RequestRefused(
        refused.code,
        f"{refused.message}{listing}",
        "Add --drain to move them away with notice, or --stop to stop them now. Homes stay here.",
    )


def _count_text(count: int) -> str:
    return f"{count} workspace{' is' if count == 1 else 's are'}"


def _workspace_names(node_workspaces: NodeWorkspaces) -> str:
    unnamed = node_workspaces.placed - len(node_workspaces.workspaces[:SHOWN])
    return ", ".join(node_workspaces.workspaces[:SHOWN]) + (f" and {unnamed} more" if unnamed > 0 else "")


def _end_local_workspaces(folder: NodeFolder, environ: Mapping[str, str], console: Console) -> None:
    """Stop everything that runs on this machine gracefully, whether known to the portal or not."""
    if not _running_workspaces(folder):
        return
    with console.step("Workspaces") as step:
        step.update("stopping")
        try:
            remaining = end_all(programs.node_environ(folder, membership.load(folder), environ))
        except (OSError, subprocess.SubprocessError) as error:
            raise Problem(f"Workspaces could not be stopped: {error}.", "Run the command again.") from error
        step.result = f"{remaining} are still stopping" if remaining else "stopped; homes stay"


def _running_workspaces(folder: NodeFolder) -> set[str]:
    return {
        owned.workspace
        for owned in processes.scan(folder.driver_instance, spares=state.claimed(folder.local))
        if owned.workspace
    }


def _check_nothing_runs(folder: NodeFolder) -> None:
    names = _running_workspaces(folder)
    if names:
        raise Problem(
            f"{len(names)} workspace{'s run' if len(names) > 1 else ' runs'} here.",
            "Stop them in the portal first, or here: berth node leave --forget --stop",
        )
