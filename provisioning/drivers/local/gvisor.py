"""gVisor around what runs in a workspace: the sandbox of bubblewrap, with a kernel of its own inside.

`argv` and `bundle` are pure functions. Bubblewrap makes the namespaces, the network and the view of the
files as for every sandbox; in it, gVisor's `runsc` runs the agent and all that the agent starts. Their
system calls are answered by gVisor, a program in user space, which asks this machine's kernel for little
(and under a filter of its own). What they see is `ROOT`, with the workspace's own folders mounted by runsc.

Outside of gVisor but inside of bubblewrap is what starts it (`provisioning/agent/program/gvisor.py`): it
joins the workspace's socket to the app's port, so no descriptor of this machine comes inside.
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
"""What the inside sees as its root, in bubblewrap's sandbox."""
MOUNTED = "/berth/mounted"
"""Where folders lie in there that runsc mounts."""
RUNSC_PATH = "/berth/runsc"
BUNDLE_PATH = "/berth/bundle"
CONFIG = "config.json"
TRAFFIC = "traffic"
"""In the workspace's runtime folder: how many bytes have come to its app and left it."""
NOFILE = 20_000
NEEDED = (
    "Install gVisor from July 2024 or newer: the package “runsc” of Debian 13, or of gVisor's own repository."
)
# What is tried: which kernel is seen, and whether `ls` can look at files, which it could not in older ones.
LOOK = "ls -ld /usr > /dev/null && dmesg"
SEEN = "Starting gVisor"


def argv(plan: SandboxPlan) -> tuple[str, ...]:
    """The whole command: bubblewrap, what starts runsc, runsc, and the socket's descriptor."""
    shown = _outer(plan.bwrap, plan.runsc, plan.bundle, plan.hostname, plan.system)
    for path in ETC_SHARED:
        shown += ["--ro-bind-try", path, f"{ROOT}{path}"]
    for name in ETC_OWN:
        shown += ["--ro-bind", f"{plan.etc}/{name}", f"{ROOT}/etc/{name}"]
    for source, inside in _programs(plan):
        shown += ["--ro-bind", source, inside]
    for number, (source, inside, readonly) in enumerate(_folders(plan)):
        at = f"{MOUNTED}/{number}" if _mounted(inside, readonly=readonly) else f"{ROOT}{inside}"
        shown += ["--ro-bind" if readonly else "--bind", source, at]
    shown += ["--chdir", "/", "--clearenv"]
    for key, value in sorted(plan.env.items()):
        shown += ["--setenv", key, value]
    outside = (plan.python, "-I", "-S", AGENT_PROGRAM_PATH, "--around-gvisor", "{app}", str(plan.port))
    run = next(number for number, (_, inside, _) in enumerate(_folders(plan)) if inside == RUN_PATH)
    return (*shown, "--", *outside, f"{MOUNTED}/{run}/{TRAFFIC}", *runsc_argv())


def bundle(plan: SandboxPlan, rlimits: Mapping[str, int]) -> dict[str, Any]:
    """The `config.json` from which runsc starts the agent; `rlimits` by their names in `resource`."""
    mounts = [_tmpfs(path) for path in OWN_TMPFS]
    for number, (_, inside, readonly) in enumerate(_folders(plan)):
        if _mounted(inside, readonly=readonly):
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
    """runsc inside of bubblewrap. Its network is bubblewrap's, which is the workspace's own.

    Files are reached through a process of their own (`directfs=false`), so gVisor itself opens none. Sockets
    in folders may be connected to, above all the one to the portal; none is made that is seen outside.
    """
    return (
        RUNSC_PATH, "--root=/tmp/runsc", "--ignore-cgroups", "--platform=systrap", "--network=host",
        "--host-uds=open", "--directfs=false", "--overlay2=none",
        "run", f"--bundle={BUNDLE_PATH}", "workspace",
    )  # fmt: skip


def probe(bwrap: str, system: tuple[tuple[str, str], ...], base: Path) -> tuple[str, str]:
    """runsc's path where it works in bubblewrap's sandbox, else the empty string and a sentence why not."""
    path = shutil.which(PROGRAM)
    if not path:
        return "", f"This machine has no gVisor. {NEEDED}"
    try:
        with scratch.folder(base, "gvisor") as folder:
            config = _config(("/bin/sh", "-c", LOOK), [_tmpfs("/tmp")], env={"PATH": "/usr/bin:/bin"})  # noqa: S108 - its own
            (folder / CONFIG).write_text(json.dumps(config))
            done = subprocess.run(
                [*_outer(bwrap, path, str(folder), "probe", system), "--", *runsc_argv()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if done.returncode == 0 and SEEN in done.stdout:
            return path, ""
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
    return "", f"gVisor does not work here ({said[:300]}). {NEEDED}"


def write(folder: Path, config: Mapping[str, Any]) -> None:
    """Put `config.json` into a new `folder`, which everybody may read. Raises `OSError`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    path = folder / CONFIG
    path.write_text(json.dumps(config))
    path.chmod(0o644)


def _outer(
    bwrap: str, runsc: str, bundle: str, hostname: str, system: tuple[tuple[str, str], ...]
) -> list[str]:
    """bubblewrap with what runsc needs, and the system both for it and below `ROOT`.

    runsc has to make namespaces, so it has all rights in bubblewrap's user namespace, whose the network is.
    gVisor runs in a user namespace below that one, and has none over the network's rules.
    """
    words = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--unshare-net", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    words += ["--cap-add", "ALL", "--new-session", "--hostname", hostname]
    for prefix in ("", ROOT):
        words += ["--ro-bind", "/usr", f"{prefix}/usr"]
        for path, target in system:
            words += (
                ["--symlink", target, f"{prefix}{path}"] if target else ["--ro-bind", path, f"{prefix}{path}"]
            )
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108 - its own
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return [*words, "--ro-bind", runsc, RUNSC_PATH, "--ro-bind", bundle, BUNDLE_PATH]


def _folders(plan: SandboxPlan) -> Sequence[tuple[str, str, bool]]:
    """What is shown beside the system: path here, path inside, whether read-only."""
    found = [(plan.home, plan.home_inside, False), (plan.run, RUN_PATH, False)]
    found += [(plan.gateway, NODE_PATH, True), *((path, inside, True) for path, inside in _programs(plan))]
    return [*found, *((path, inside, False) for path, inside in plan.writable_at)]


def _programs(plan: SandboxPlan) -> Sequence[tuple[str, str]]:
    """What is shown both to what starts runsc and inside: path here, path inside."""
    return [*((path, path) for path in plan.readonly), *plan.readonly_at, (plan.agent, AGENT_PATH)]


def _mounted(inside: str, *, readonly: bool) -> bool:
    """Whether runsc has to mount it: what can be written, and what lies in memory of the inside's own."""
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
    """An OCI runtime configuration. User 0 of the inside is this user, without capabilities."""
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
