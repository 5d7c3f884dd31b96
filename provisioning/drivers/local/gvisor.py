"""gVisor inside the bubblewrap sandbox: an application kernel for a workspace.

`argv` and `bundle` are pure functions. Bubblewrap creates the namespaces, network and file view as in every
sandbox. Inside, gVisor's `runsc` runs the agent and its children. gVisor answers their system calls in user
space and needs few calls of the host kernel, under its own filter. The root of the container is `ROOT`; runsc
mounts the workspace's own folders.

The launcher of runsc (`provisioning/agent/program/gvisor.py`) runs in bubblewrap but outside gVisor. It
connects the workspace's socket to the app's port, so no host descriptor enters gVisor.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioning.drivers.local import scratch
from provisioning.drivers.local.sandbox import (
    AGENT_PATH,
    AGENT_PROGRAM_PATH,
    ETC_OWN,
    ETC_SHARED,
    NODE_PATH,
    OWN_TMPFS,
    RUN_PATH,
    UID,
    SandboxPlan,
)

PROGRAM = "runsc"
PROBE_TIMEOUT_S = 20
ROOT = "/berth/root"
"""Root of the container, as a path in bubblewrap's sandbox."""
MOUNTED = "/berth/mounted"
"""Source of folders that runsc mounts."""
RUNSC_PATH = "/berth/runsc"
BUNDLE_PATH = "/berth/bundle"
CONFIG = "config.json"
TRAFFIC = "traffic"
"""File in the workspace's runtime folder with bytes to and from its app."""
NOFILE = 20_000
INSTALL_HINT = (
    "Install gVisor from July 2024 or newer: the package “runsc” from Debian 13 or gVisor's repository."
)
# The probe reads the kernel log and runs `ls`, which fails in older versions.
PROBE = "ls -ld /usr > /dev/null && dmesg"
BOOT_MESSAGE = "Starting gVisor"


def argv(plan: SandboxPlan) -> tuple[str, ...]:
    """Return the whole command: bubblewrap, the launcher of runsc, runsc, and the socket's descriptor."""
    arguments = _bwrap_arguments(plan.bwrap, plan.runsc, plan.bundle, plan.hostname, plan.system)
    for path in ETC_SHARED:
        arguments += ["--ro-bind-try", path, f"{ROOT}{path}"]
    for name in ETC_OWN:
        arguments += ["--ro-bind", f"{plan.etc}/{name}", f"{ROOT}/etc/{name}"]
    for source, inside in _programs(plan):
        arguments += ["--ro-bind", source, inside]
    for number, (source, inside, readonly) in enumerate(_folders(plan)):
        at = f"{MOUNTED}/{number}" if _is_mounted(inside, readonly=readonly) else f"{ROOT}{inside}"
        arguments += ["--ro-bind" if readonly else "--bind", source, at]
    arguments += ["--chdir", "/", "--clearenv"]
    for key, value in sorted(plan.env.items()):
        arguments += ["--setenv", key, value]
    outside = (plan.python, "-I", "-S", AGENT_PROGRAM_PATH, "--around-gvisor", "{app}", str(plan.port))
    run = next(number for number, (_, inside, _) in enumerate(_folders(plan)) if inside == RUN_PATH)
    return (*arguments, "--", *outside, f"{MOUNTED}/{run}/{TRAFFIC}", *runsc_argv())


def bundle(plan: SandboxPlan, rlimits: Mapping[str, int]) -> dict[str, Any]:
    """Return the `config.json` with which runsc starts the agent.

    `rlimits` uses the names of `resource`.
    """
    mounts = [_tmpfs(path) for path in OWN_TMPFS]
    for number, (_, inside, readonly) in enumerate(_folders(plan)):
        if _is_mounted(inside, readonly=readonly):
            mounts.append(_bind(f"{MOUNTED}/{number}", inside, readonly=readonly))
    inside_gvisor = (plan.python, "-I", "-S", AGENT_PROGRAM_PATH, "--inside-gvisor", str(UID))
    return _config(
        (*inside_gvisor, f"{RUN_PATH}/agent.json"),
        mounts,
        env=plan.env,
        cwd=plan.home_inside,
        hostname=plan.hostname,
        rlimits={"RLIMIT_NOFILE": NOFILE, **rlimits},
    )


def runsc_argv() -> tuple[str, ...]:
    """Return the runsc command inside bubblewrap. It uses bubblewrap's network, that of the workspace.

    Files are accessed through a separate process (`directfs=false`), so gVisor opens none. Sockets in folders
    can be connected to, for example the one to the portal; none created inside is visible outside.
    """
    return (
        RUNSC_PATH, "--root=/tmp/runsc", "--ignore-cgroups", "--platform=systrap", "--network=host",
        "--host-uds=open", "--directfs=false", "--overlay2=none",
        "run", f"--bundle={BUNDLE_PATH}", "workspace",
    )  # fmt: skip


def probe(bwrap: str, system: tuple[tuple[str, str], ...], base: Path) -> tuple[str, str]:
    """Return runsc's path if it works in bubblewrap's sandbox, else an empty string and the reason."""
    path = shutil.which(PROGRAM)
    if not path:
        return "", f"gVisor is not installed on this machine. {INSTALL_HINT}"
    try:
        with scratch.folder(base, "gvisor") as folder:
            config = _config(("/bin/sh", "-c", PROBE), [_tmpfs("/tmp")], env={"PATH": "/usr/bin:/bin"})  # noqa: S108 - its own
            (folder / CONFIG).write_text(json.dumps(config))
            process = subprocess.run(
                [*_bwrap_arguments(bwrap, path, str(folder), "probe", system), "--", *runsc_argv()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if process.returncode == 0 and BOOT_MESSAGE in process.stdout:
            return path, ""
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[0]
    return "", f"gVisor does not work on this machine ({reason[:300]}). {INSTALL_HINT}"


def write(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json` to a new world-readable `folder`. Raises `OSError`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    path = folder / CONFIG
    path.write_text(json.dumps(config))
    path.chmod(0o644)


def _bwrap_arguments(
    bwrap: str, runsc: str, bundle: str, hostname: str, system: tuple[tuple[str, str], ...]
) -> list[str]:
    """Return bubblewrap's command with the options of runsc, and the system's folders at / and below `ROOT`.

    runsc creates namespaces, so it has all capabilities in bubblewrap's user namespace, which owns the
    network. gVisor runs in a nested user namespace and cannot change the network's rules.
    """
    arguments = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--unshare-net", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    arguments += ["--cap-add", "ALL", "--new-session", "--hostname", hostname]
    for prefix in ("", ROOT):
        arguments += ["--ro-bind", "/usr", f"{prefix}/usr"]
        for path, target in system:
            arguments += (
                ["--symlink", target, f"{prefix}{path}"] if target else ["--ro-bind", path, f"{prefix}{path}"]
            )
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - its own
    arguments += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return [*arguments, "--ro-bind", runsc, RUNSC_PATH, "--ro-bind", bundle, BUNDLE_PATH]


def _folders(plan: SandboxPlan) -> Sequence[tuple[str, str, bool]]:
    """Return the folders beside the system: host path, path inside, whether read-only."""
    folders = [(plan.home, plan.home_inside, False), (plan.run, RUN_PATH, False)]
    folders += [(plan.gateway, NODE_PATH, True), *((path, inside, True) for path, inside in _programs(plan))]
    return [*folders, *((path, inside, False) for path, inside in plan.writable_at)]


def _programs(plan: SandboxPlan) -> Sequence[tuple[str, str]]:
    """Return the folders that both the launcher of runsc and the container see: host path, path inside."""
    return [*((path, path) for path in plan.readonly), *plan.readonly_at, (plan.agent, AGENT_PATH)]


def _is_mounted(inside: str, *, readonly: bool) -> bool:
    """Return whether runsc must mount the folder: if it is writable, or below a tmpfs of runsc."""
    return not readonly or any(inside.startswith(f"{path}/") for path in OWN_TMPFS)


def _tmpfs(path: str) -> dict[str, Any]:
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}


def _bind(source: str, inside: str, *, readonly: bool) -> dict[str, Any]:
    options = ["rbind", "ro" if readonly else "rw", "nosuid", "nodev"]
    return {"destination": inside, "type": "bind", "source": source, "options": options}


def _config(
    args: Sequence[str],
    mounts: Sequence[Mapping[str, Any]],
    *,
    env: Mapping[str, str],
    cwd: str = "/",
    hostname: str = "probe",
    rlimits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return an OCI runtime configuration. User 0 inside is this user, without capabilities."""
    own = [{"containerID": 0, "hostID": 0, "size": 1}]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0, "umask": 0o077},
            "args": list(args),
            "env": [f"{key}={value}" for key, value in sorted(env.items())],
            "cwd": cwd,
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [
                {"type": name, "soft": value, "hard": value} for name, value in (rlimits or {}).items()
            ],
        },
        "root": {"path": ROOT, "readonly": True},
        "hostname": hostname,
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *mounts],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("user", "pid", "ipc", "uts", "mount")],
            "uidMappings": own,
            "gidMappings": own,
        },
    }
