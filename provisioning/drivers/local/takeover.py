"""Start a workspace in a spare (`spares.py`), equivalent to a plain start.

The order is: record; limits, identity, home and devices; and last the agent's configuration with the secrets.
The agent starts only then, so nothing of the workspace runs before everything is in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from provisioning.drivers.local import cgroups, cpu_count, processes
from provisioning.drivers.local.sandbox import GPU_SHARED, JUPYTER_PATH, RUN_PATH, hostname
from provisioning.drivers.local.spares import ClaimedSpare, SpareKind, Spares, write_etc
from provisioning.drivers.local.start import (
    Settings,
    agent_config,
    app_env,
    home_of,
    join_network,
    markers_of,
    new_record,
    rlimits,
)
from provisioning.drivers.local.state import NODE_USER, WorkspaceDir, write_atomically
from provisioning.errors import StartFailed
from provisioning.preloading import recipe_for
from provisioning.types import DeviceInfo, WorkspaceSpec

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
log = logging.getLogger(__name__)

ATTACH = Path(__file__).resolve().with_name("attach.py")
ATTACH_TIMEOUT_S = 5.0
TAKEN_TIMEOUT_S = 5.0
END_TIMEOUT_S = 2.0


def take_over_spare(
    spec: WorkspaceSpec,
    folder: WorkspaceDir,
    settings: Settings,
    devices: Sequence[DeviceInfo],
    spares: Spares,
) -> bool:
    """Return True if a spare became the workspace; False, with nothing left, if a plain start is needed.

    The caller holds the workspace's operation lock and has checked its state. Raises `StartFailed` if a spare
    that could not be handed over has not ended yet.
    """
    recipe = recipe_for(spec.app)
    if recipe is None or not settings.sandbox.bwrap or settings.sandbox.runsc:
        return False
    if settings.mounts:
        return False  # a spare's mounts are fixed in advance
    if (settings.uid == NODE_USER) != (settings.sandbox.uids is None):
        return False  # its home still has another owner
    kind = SpareKind(recipe.loading(settings.environment.preload), settings.environment, settings.sandbox)
    taken_spare = spares.claim(kind) if kind.can_be_created else None
    if taken_spare is None:
        return False
    with taken_spare.connection:
        try:
            inside = _hand_over(taken_spare, spec, folder, settings, devices)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("could not take over spare %s: %s", taken_spare.mark.id, error)
        else:
            join_network(inside, folder, settings)
            return True
    _end(taken_spare, folder, spares)
    return False


def _hand_over(
    taken_spare: ClaimedSpare,
    spec: WorkspaceSpec,
    folder: WorkspaceDir,
    settings: Settings,
    devices: Sequence[DeviceInfo],
) -> int:
    spare, groups = taken_spare.folder, [Path(path) for path in taken_spare.mark.cgroups]
    launched = spare.launched()
    inside = processes.sandbox_init(launched.pid) if launched else None
    if launched is None or inside is None:
        raise OSError("the spare's sandbox has ended")
    home = home_of(settings, spec)
    home_inside = f"/home/{spec.owner}"
    owners = None if settings.uid == NODE_USER else (settings.uid, taken_spare.mark.uid)
    with _attach_process(
        {
            "pid": inside,
            "start_ticks": processes.start_ticks(inside),
            "hostname": hostname(spec.name),
            "uid": None if taken_spare.mark.uid == NODE_USER else taken_spare.mark.uid,
            "mounts": mounts(home, home_inside, devices, owners=owners),
        }
    ) as attaching:
        record = new_record(spec, folder, settings, groups)
        folder.reserve_closing()
        spare.write_record(record)
        write_etc(spare, spec.owner, hostname(spec.name), settings.sandbox)
        cpu_count.write(spare.etc, spec.resources.cpu_milli)
        cgroups.limit(
            settings.cgroup_host,
            groups,
            cpu_milli=spec.resources.cpu_milli,
            memory_mib=spec.resources.memory_mib,
        )
        (spare.path / "app.sock").rename(spare.app_socket(spec.ref.generation))
        become_workspace(spare, folder)
        _wait_for(attaching)
    markers = markers_of(spec, folder, settings)
    config = agent_config(spec, record, settings, home=home_inside, run=RUN_PATH, devices=devices)
    config["env"] = app_env(
        spec,
        home=home_inside,
        temporary="/tmp",  # noqa: S108 - the sandbox's own
        bin_dirs=settings.environment.bin_dirs,
        jupyter=JUPYTER_PATH,
        devices=devices,
        markers=markers,
        egress=settings.egress,
        overlay=config["packages"],
    )
    config["rlimits"] = rlimits(spec.resources.memory_mib, limited=bool(groups))
    identity = json.dumps(asdict(replace(launched, attempt=record.attempt)))
    write_atomically(folder.pid_file, identity.encode())
    send_configuration(taken_spare, config)
    return inside


def become_workspace(spare: WorkspaceDir, folder: WorkspaceDir) -> None:
    """Make the spare's folder the workspace's atomically. Raises `OSError`.

    Leftovers of an earlier generation move to the spare's place and are removed.
    """
    if not folder.path.exists():
        spare.path.rename(folder.path)
        return
    old, new = os.fsencode(spare.path), os.fsencode(folder.path)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "this C library has no renameat2")
    if libc.renameat2(AT_FDCWD, old, AT_FDCWD, new, RENAME_EXCHANGE) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    spare.remove()


def send_configuration(taken_spare: ClaimedSpare, config: dict[str, Any]) -> None:
    """Send the configuration, the last step. Raises `OSError` if the agent did not accept it."""
    taken_spare.connection.settimeout(TAKEN_TIMEOUT_S)
    taken_spare.connection.sendall(json.dumps(config).encode() + b"\n")
    if taken_spare.connection.recv(64) != b"taken\n":
        raise OSError("the spare's agent has ended")


def mounts(
    home: Path, home_inside: str, devices: Sequence[DeviceInfo], *, owners: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """Return the mounts for `attach.py`: what `bwrap_argv` shows in a workspace but not in a spare.

    `owners` are the home's user id and that of the spare's processes.
    """
    entries = [{**_mount(str(home), home_inside, folder=True), "owners": owners}]
    nodes = list(dict.fromkeys(node for device in devices for node in device.nodes))
    if nodes:
        entries += [
            _mount(path, path, folder=True, readonly=True) for path in GPU_SHARED if Path(path).is_dir()
        ]
    return entries + [_mount(node, node, devices=True) for node in nodes]


def _mount(
    source: str, target: str, *, folder: bool = False, readonly: bool = False, devices: bool = False
) -> dict[str, Any]:
    return {"source": source, "target": target, "folder": folder, "readonly": readonly, "devices": devices}


@contextlib.contextmanager
def _attach_process(plan: dict[str, Any]) -> Any:
    """Run `attach.py` concurrently with other steps."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(ATTACH)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={},
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(plan).encode())
            process.stdin.close()
            process.stdin = None
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _wait_for(attaching: subprocess.Popen[bytes]) -> None:
    _, stderr = attaching.communicate(timeout=ATTACH_TIMEOUT_S)
    if attaching.returncode != 0:
        raise OSError(stderr.decode("utf-8", "replace")[-2000:] or "attach.py ended early")


def _end(taken_spare: ClaimedSpare, folder: WorkspaceDir, spares: Spares) -> None:
    """End a spare that did not become the workspace, wherever its folder is."""
    moved = taken_spare.mark.id in folder.claimed()
    deadline = time.monotonic() + END_TIMEOUT_S
    while not spares.end(folder if moved else taken_spare.folder, taken_spare.mark):
        if time.monotonic() > deadline:
            raise StartFailed(
                "The workspace was not started because its prepared sandbox is still stopping. Try again.",
                detail=f"spare {taken_spare.mark.id} has processes left",
            )
        time.sleep(0.01)
