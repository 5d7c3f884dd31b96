"""Whether bubblewrap really works here, and a network of a sandbox's own: found out by running them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import network, processes
from provisioning.drivers.local.sandbox import PROC_MASKED, namespace_argv, proc_argv, system_argv
from provisioning.errors import StartFailed

PROBE_TIMEOUT_S = 10
RETRY_AFTER_S = 60.0
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


@dataclass(frozen=True, slots=True)
class SandboxProbe:
    """What works here.

    `bwrap` is the program's path when it works, else empty with `reason`, a sentence with its fix.
    `network` are the programs that make a network of a workspace's own, or None with `network_reason`.
    """

    bwrap: str
    disable_userns: bool = False
    reason: str = ""
    network: network.Tools | None = None
    network_reason: str = ""

    @property
    def warning(self) -> str:
        """What an operator should know and do; empty where nothing is amiss."""
        return self.reason or self.network_reason


_known: dict[str, tuple[float, SandboxProbe]] = {}


def system_folders() -> tuple[tuple[str, str], ...]:
    """/bin, /lib and the like: (path, link target), the target empty for a real folder."""
    return tuple(
        (path, str(Path(path).readlink()) if Path(path).is_symlink() else "")
        for path in SYSTEM_FOLDERS
        if Path(path).exists()
    )


def masked_files() -> tuple[str, ...]:
    """The files of /proc to hide that this kernel has."""
    return tuple(path for path in PROC_MASKED if Path(path).exists())


def probe() -> SandboxProbe:
    """A success is remembered by this process; a failure is tried again after a minute."""
    path = shutil.which("bwrap") or ""
    kept = _known.get(path)
    if kept and (kept[1].network or time.monotonic() - kept[0] < RETRY_AFTER_S):
        return kept[1]
    found = _try(path)
    _known[path] = (time.monotonic(), found)
    return found


def _try(path: str) -> SandboxProbe:
    if not path:
        return SandboxProbe(
            "", reason="Workspaces are not kept apart: install bubblewrap (the package “bubblewrap”)."
        )
    said = ""
    for disable_userns in (True, False):
        argv = [
            path,
            *namespace_argv(disable_userns=disable_userns, own_network=False),
            *system_argv(system_folders()),
        ]
        argv += ["--proc", "/proc", "--dev", "/dev", *proc_argv(masked_files()), "--", "/usr/bin/true"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if done.returncode == 0:
            tools = network.tools()
            complaint = tools if isinstance(tools, str) else _try_network(path, disable_userns, tools)
            found = None if complaint or isinstance(tools, str) else tools
            return SandboxProbe(path, disable_userns, network=found, network_reason=complaint)
        said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return SandboxProbe(
        "",
        reason=(
            f"Workspaces are not kept apart: bubblewrap does not work here ({said}). "
            "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0) or run on a host that does."
        ),
    )


def _try_network(bwrap: str, disable_userns: bool, tools: network.Tools) -> str:
    """Make a sandbox with a network of its own and a way out; a sentence where that does not work."""
    argv = [bwrap, *namespace_argv(disable_userns=disable_userns, own_network=True)]
    argv += [*system_argv(system_folders()), "--proc", "/proc", "--dev", "/dev", "--", "/bin/cat"]
    with tempfile.TemporaryDirectory(prefix="berth-network-") as folder:
        try:
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                try:
                    init = processes.sandbox_init(process.pid, timeout_s=PROBE_TIMEOUT_S)
                    if init is None:
                        raise StartFailed("The sandbox did not start.", detail="no process inside")
                    network.join(tools, init, Path(folder), network.Policy())
                finally:
                    network.end(Path(folder))
        except (OSError, StartFailed) as error:
            said = getattr(error, "detail", "") or str(error)
            return (
                f"Workspaces share this machine's network: pasta and nftables do not work here ({said}). "
                "See that /dev/net/tun exists and that the kernel has nf_tables."
            )
    return ""
