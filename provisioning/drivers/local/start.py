"""Launch a workspace: write its record, then the agent's configuration, then start the process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning import git_urls
from provisioning.drivers.local import cgroups, cpu_count, door, gvisor, network, packages, processes
from provisioning.drivers.local.environment import Environment
from provisioning.drivers.local.failures import HomeOwnerChanging
from provisioning.drivers.local.home_quota import HomeQuotas
from provisioning.drivers.local.isolation import SandboxProbe, filter_files, masked_files, system_folders
from provisioning.drivers.local.launching import AGENT, AGENT_PROGRAM, JUPYTER, spawn
from provisioning.drivers.local.sandbox import (
    GIT_PATH,
    JUPYTER_PATH,
    NODE_PATH,
    PROGRAMS_PATH,
    PROGRESS_PATH,
    RUN_PATH,
    SECRETS_PATH,
    SandboxPlan,
    bwrap_argv,
    hostname,
)
from provisioning.drivers.local.spares import programs_at, write_etc
from provisioning.drivers.local.staging import Mount, staged, user
from provisioning.drivers.local.state import (
    NODE_USER,
    GpuShare,
    StartRecord,
    WorkspaceDir,
    gateway_folder,
    write_atomically,
)
from provisioning.egress_rules import EgressPolicy
from provisioning.endpoints import PORTAL_SOCKET, socket_endpoint
from provisioning.errors import InvalidSpec, StartFailed
from provisioning.handover import TooDeep, hand_over
from provisioning.mounts import MountedFolder
from provisioning.types import CheckoutSpec, DeviceInfo, WorkspaceSpec

PORT_CANDIDATES = 8
SANDBOX_TIMEOUT_S = 2.0
END_TIMEOUT_S = 2.0
HAND_OVER_S = 1.0
"""Time slice of one start for changing a home's owner; the next start continues."""
AGENT_URL = f"unix:{NODE_PATH}/{Path(PORTAL_SOCKET).name}"
"""How an agent in a sandbox reaches the portal: a socket of the node's gateway, with any network."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of this node and pool."""

    homes: Path
    instance: str
    environment: Environment
    sandbox: SandboxProbe
    egress: EgressPolicy
    cgroup_host: cgroups.CgroupHost
    port_min: int
    port_max: int
    mounts: tuple[MountedFolder, ...] = ()
    quotas: HomeQuotas | None = None
    """Kernel quotas of homes, if supported."""
    uid: int = NODE_USER
    """User id of the home's owner, and of the processes unless the sandbox was a spare (`uids.py`)."""
    shares: tuple[GpuShare, ...] = ()


def launch(
    spec: WorkspaceSpec,
    folder: WorkspaceDir,
    settings: Settings,
    devices: Sequence[DeviceInfo],
    *,
    operation_lock: int,
) -> None:
    """Start the workspace. The caller holds its operation lock and has checked its state.

    Raises `StartFailed`, leaving nothing behind, or `OSError`.
    """
    old = folder.record()
    if old is not None:
        cgroups.remove([Path(path) for path in old.cgroups])
    groups = cgroups.paths(settings.cgroup_host, folder.name)
    launched = False
    try:
        door_group = door.group_of(folder.base)
        folder.prepare(settings.uid, door_group)
        home = home_of(settings, spec)
        record = new_record(spec, folder, settings, groups)
        folder.reserve_closing()
        folder.write_record(record)
        cgroups.create(
            settings.cgroup_host,
            folder.name,
            cpu_milli=spec.resources.cpu_milli,
            memory_mib=spec.resources.memory_mib,
        )
        markers = markers_of(spec, folder, settings)
        mounts: list[Mount] = []
        limited = rlimits(spec.resources.memory_mib, limited=bool(groups))
        if settings.sandbox.bwrap:
            plan = _sandbox(spec, folder, settings, home, devices, markers, record)
            if plan.runsc:
                gvisor.write(folder.bundle, gvisor.bundle(plan, limited))
            if settings.uid != NODE_USER:
                plan, mounts = staged(plan)
            argv = gvisor.argv(plan) if plan.runsc else bwrap_argv(plan)
            env, home_inside, run_inside = markers, plan.home_inside, RUN_PATH
        else:
            argv = (settings.environment.python, "-I", "-S", str(AGENT_PROGRAM), str(folder.config), "{app}")
            env = {**markers, "BERTH_ROLE": "agent", "PATH": os.pathsep.join(settings.environment.bin_dirs)}
            home_inside, run_inside = str(home), str(folder.run)
        config = agent_config(spec, record, settings, home=home_inside, run=run_inside, devices=devices)
        config["env"] = app_env(
            spec,
            home=home_inside,
            temporary="/tmp" if settings.sandbox.bwrap else f"{run_inside}/tmp",  # noqa: S108 - its own tmpfs
            bin_dirs=settings.environment.bin_dirs,
            jupyter=JUPYTER_PATH if settings.sandbox.bwrap else str(JUPYTER),
            devices=devices,
            markers=markers,
            egress=settings.egress,
            overlay=config["packages"],
        )
        if not settings.sandbox.bwrap:
            (folder.run / "tmp").mkdir(mode=0o700)
        write_atomically(folder.config, json.dumps(config).encode())
        if settings.uid != NODE_USER:
            os.chown(folder.config, settings.uid, settings.uid)
        spawn(
            {
                "argv": argv,
                "user": user(settings.uid, mounts) if settings.uid != NODE_USER else None,
                "env": env,
                "lock": str(folder.lock),
                "pid": str(folder.pid_file),
                "log": str(folder.launch_log),
                "attempt": record.attempt,
                "sockets": {"app": str(folder.app_socket(spec.ref.generation))},
                "door": door_group,
                "files": {} if settings.sandbox.runsc else filter_files(folder.base, settings.sandbox),
                "cgroup_procs": [str(group / "cgroup.procs") for group in groups],
                "rlimits": limited,
            },
            operation_lock,
        )
        launched = True
        start_network(folder, settings)
    except BaseException:
        if launched:
            raise
        # Nothing was executed, so all traces can be removed.
        cgroups.remove(groups)
        if not folder.alive():
            with contextlib.suppress(OSError):
                folder.remove()
        raise


def new_record(
    spec: WorkspaceSpec, folder: WorkspaceDir, settings: Settings, groups: Sequence[Path]
) -> StartRecord:
    """Return the record of a new start, with ports that are free now. Raises `StartFailed`."""
    return StartRecord(
        workspace_id=spec.ref.workspace_id,
        generation=spec.ref.generation,
        spec_digest=spec.digest(),
        app_name=spec.template,
        attempt=secrets.token_hex(8),
        ports=_ports(folder, settings),
        memory_mib=spec.resources.memory_mib,
        stop_timeout_s=spec.app.stop_timeout_s,
        sandboxed=bool(settings.sandbox.bwrap),
        created_at=time.time(),
        cgroups=tuple(str(group) for group in groups),
        own_network=settings.sandbox.network is not None,
        home=spec.home_key,
        uid=settings.uid,
        environment=spec.environment,
        egress=settings.egress.egress.value,
        egress_allow=settings.egress.as_text(),
        shares=settings.shares,
    )


def markers_of(spec: WorkspaceSpec, folder: WorkspaceDir, settings: Settings) -> dict[str, str]:
    """Return the environment variables that identify the workspace's processes; see `processes.py`."""
    return {
        "BERTH_INSTANCE": settings.instance,
        "BERTH_WORKSPACE": folder.name,
        "BERTH_GENERATION": str(spec.ref.generation),
    }


def agent_config(
    spec: WorkspaceSpec,
    record: StartRecord,
    settings: Settings,
    *,
    home: str,
    run: str,
    devices: Sequence[DeviceInfo],
) -> dict[str, Any]:
    """Return the agent's configuration without the app's environment.

    See `provisioning/agent/program/agent.py`.
    """
    overlay = packages.overlay(spec, settings.environment, home=home)
    return {
        "argv": packages.argv_of(spec.app.argv, overlay, settings.environment),
        "packages": overlay,
        "ports": list(record.ports),
        "endpoint": socket_endpoint(spec.ref),
        "ready_path": spec.app.ready_path,
        "activity": spec.app.activity,
        "home": home,
        "name": spec.name,
        "app_token": spec.app_token,
        "workspace_id": spec.ref.workspace_id,
        "generation": spec.ref.generation,
        "agent_url": AGENT_URL if settings.sandbox.bwrap else spec.agent.url,
        "agent_token": spec.agent.token,
        "heartbeat_s": spec.agent.heartbeat_s,
        "start_timeout_s": spec.app.start_timeout_s,
        "stop_timeout_s": spec.app.stop_timeout_s,
        "state_path": f"{run}/state.json",
        "log_path": f"{run}/app.log",
        "traffic_path": f"{run}/{gvisor.TRAFFIC}" if settings.sandbox.runsc else "",
        "devices": [device.uuid for device in devices],
        "shared_devices": [share.uuid for share in settings.shares],
        # gVisor has its own process table and device files, which no driver knows.
        "gpu_processes_visible": not settings.sandbox.runsc,
        "secrets": spec.secrets,
        "secrets_dir": SECRETS_PATH if settings.sandbox.bwrap else "",
        "progress_dir": PROGRESS_PATH if settings.sandbox.bwrap else f"{run}/progress",
        "checkouts": [checkout_of(checkout) for checkout in spec.checkouts],
        "git_dir": GIT_PATH if settings.sandbox.bwrap else "",
        "known_hosts": list(git_urls.KNOWN_HOSTS),
        "egress": settings.egress.egress.value,
        "egress_allow": settings.egress.as_text(),
        "remove_config": True,
    }


def checkout_of(spec: CheckoutSpec) -> dict[str, Any]:
    """Return a repository for `provisioning/agent/program/checkouts.py`. Raises `InvalidSpec`."""
    url, ref = git_urls.parsed(spec.url), git_urls.ref_problem(spec.ref)
    if isinstance(url, git_urls.UrlProblem) or ref is not None:
        raise InvalidSpec("The Git repository's URL or branch is not valid. Correct the URL or branch.")
    return {
        "what": spec.kind.value,
        "url": spec.url,
        "ref": spec.ref,
        "folder": url.folder,
        "credential": spec.credential,
        "timeout_s": spec.timeout_s,
        "script_timeout_s": spec.script_timeout_s,
        "limit_mib": spec.limit_mib,
    }


def app_env(
    spec: WorkspaceSpec,
    *,
    home: str,
    temporary: str,
    bin_dirs: Sequence[str],
    jupyter: str,
    devices: Sequence[DeviceInfo],
    markers: Mapping[str, str],
    egress: EgressPolicy,
    overlay: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Return the app's whole environment. Templates can override all but markers and devices."""
    return {
        "HOME": home,
        "USER": spec.owner,
        "LOGNAME": spec.owner,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        **packages.variables(
            overlay,
            path=os.pathsep.join((*bin_dirs[:1], f"{home}/.local/bin", *bin_dirs[1:], PROGRAMS_PATH)),
            jupyter=jupyter,
        ),
        **packages.certificates(),
        "TMPDIR": temporary,
        "JUPYTER_CONFIG_DIR": f"{home}/.jupyter",
        "JUPYTER_CONFIG_PATH": f"{jupyter}/config",
        "JUPYTER_DATA_DIR": f"{home}/.local/share/jupyter",
        "JUPYTER_RUNTIME_DIR": f"{temporary}/jupyter",
        "IPYTHONDIR": f"{home}/.ipython",
        **network.proxy_env(egress),
        # JAX prints a traceback if its packages include CUDA and there is no device.
        **({} if spec.resources.accelerators.count else {"JAX_PLATFORMS": "cpu"}),
        **cpu_count.variables(spec.resources.cpu_milli),
        **spec.app.env,
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices),
        **markers,
    }


def rlimits(memory_mib: int, *, limited: bool) -> dict[str, int]:
    """Return limits per process: no core dumps; without a cgroup also a limit on data.

    Not RLIMIT_AS: Jupyter and V8 reserve large address spaces. Not RLIMIT_NPROC: it counts all processes of
    the user who runs the node worker.
    """
    limits = {"RLIMIT_CORE": 0}
    if not limited:
        limits["RLIMIT_DATA"] = memory_mib << 20
    return limits


def home_of(settings: Settings, spec: WorkspaceSpec) -> Path:
    """Return the home, created if missing and owned by its user.

    Raises `HomeOwnerChanging`, `StartFailed` or `OSError`.
    """
    home = settings.homes / spec.team / spec.owner
    for path in (settings.homes, home.parent, home):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.quotas is not None:
        settings.quotas.limit_home(spec.home_key)
    if os.geteuid() == 0:
        owner = 0 if settings.uid == NODE_USER else settings.uid
        try:
            finished = hand_over(home, owner, limit_s=HAND_OVER_S)
        except TooDeep as error:
            raise StartFailed(
                f"The owner of home {spec.home_key} could not be set: {error}. Move the deepest folders up.",
            ) from error
        if not finished:
            raise HomeOwnerChanging(
                "The node is still setting the owner of the home's files. The portal retries automatically."
            )
    return home


def join_network(init: int | None, folder: WorkspaceDir, settings: Settings) -> None:
    """Apply network rules and start egress for the sandbox, if it has its own network.

    `init` is its first process. Raises `StartFailed` after killing everything of the workspace.
    """
    if settings.sandbox.network is None:
        return
    try:
        if init is None:
            raise StartFailed(
                "The sandbox could not be set up. Check the workspace's log, then start the workspace again.",
                detail=folder.tail(20),
            )
        network.join(settings.sandbox.network, init, folder.path, settings.egress)
    except StartFailed:
        _end(folder, settings)
        raise


def _end(folder: WorkspaceDir, settings: Settings) -> None:
    """Kill a failed start and remove it, if that completes in time."""
    record = folder.record()
    groups = [Path(path) for path in record.cgroups] if record else []
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        owned = processes.scan(settings.instance, folder.name, spares=folder.claimed())
        inside = cgroups.pids(groups)
        network_ended = network.end(folder.path)
        if network_ended and not owned and not inside and not folder.alive():
            break
        if time.monotonic() > deadline:
            return  # the next observation continues
        processes.kill(owned, inside)
        time.sleep(0.01)
    cgroups.remove(groups)
    with contextlib.suppress(OSError):
        folder.remove()


def start_network(folder: WorkspaceDir, settings: Settings) -> None:
    """Call `join_network` for a sandbox that was just launched or lost its egress."""
    launched = folder.launched()
    if settings.sandbox.network is not None and launched is not None:
        join_network(processes.sandbox_init(launched.pid, timeout_s=SANDBOX_TIMEOUT_S), folder, settings)


def _ports(folder: WorkspaceDir, settings: Settings) -> tuple[int, ...]:
    """Return a few free ports from a random offset; the agent takes the first that is still free.

    With a separate network all ports are free, and every workspace gets the same.
    """
    lowest, highest = settings.port_min, settings.port_max
    if settings.sandbox.network is not None:
        candidates = 1 if settings.sandbox.runsc else PORT_CANDIDATES  # gVisor needs a fixed port
        return tuple(range(lowest, min(lowest + candidates, highest + 1)))
    span = highest - lowest + 1
    first = secrets.randbelow(span)
    ports: list[int] = []
    for step in range(span):
        port = lowest + (first + step) % span
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == PORT_CANDIDATES:
            break
    if not ports:
        raise StartFailed(
            f"No port from {lowest} to {highest} is free. Widen port_min and port_max of the pool.",
            detail=f"workspace {folder.name}",
        )
    return tuple(ports)


def _sandbox(
    spec: WorkspaceSpec,
    folder: WorkspaceDir,
    settings: Settings,
    home: Path,
    devices: Sequence[DeviceInfo],
    markers: Mapping[str, str],
    record: StartRecord,
) -> SandboxPlan:
    host = hostname(spec.name)
    groups = [Path(path) for path in record.cgroups]
    cpu_count.write(folder.etc, spec.resources.cpu_milli)
    # gVisor has its own /sys.
    cpu_mounts = () if settings.sandbox.runsc else cpu_count.sandbox_mounts(folder.etc, groups)
    write_etc(folder, spec.owner, host, settings.sandbox)
    return SandboxPlan(
        bwrap=settings.sandbox.bwrap,
        system=system_folders(),
        readonly=settings.environment.readonly,
        python=settings.environment.python,
        agent=str(AGENT),
        run=str(folder.run),
        gateway=str(gateway_folder(folder.base)),
        etc=str(folder.etc),
        home=str(home),
        user=spec.owner,
        hostname=host,
        env={
            **markers,
            "BERTH_ROLE": "agent",
            "LANG": "C.UTF-8",
            "PATH": os.pathsep.join(settings.environment.bin_dirs),
        },
        readonly_at=(*programs_at(), *cpu_mounts, *_template_mounts(settings, writable=False)),
        writable_at=_template_mounts(settings, writable=True),
        masked=masked_files(),
        device_nodes=tuple(dict.fromkeys(node for device in devices for node in device.nodes)),
        disable_userns=settings.sandbox.disable_userns,
        own_network=settings.sandbox.network is not None,
        filtered=bool(settings.sandbox.seccomp),
        runsc=settings.sandbox.runsc,
        bundle=str(folder.bundle),
        port=record.ports[0],
    )


def _template_mounts(settings: Settings, *, writable: bool) -> tuple[tuple[str, str], ...]:
    """Return the node's folders that the template mounts: host path and path inside."""
    return tuple((str(mount.source), mount.inside) for mount in settings.mounts if mount.writable == writable)
