"""Whether bubblewrap really works here, found out by running it."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local.sandbox import PROC_MASKED, namespace_argv, proc_argv, system_argv

PROBE_TIMEOUT_S = 10
RETRY_AFTER_S = 60.0
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


@dataclass(frozen=True, slots=True)
class SandboxProbe:
    """`bwrap` is the program's path when it works, else empty with `reason`, a sentence with its fix."""

    bwrap: str
    disable_userns: bool = False
    reason: str = ""


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
    if kept and (kept[1].bwrap or time.monotonic() - kept[0] < RETRY_AFTER_S):
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
        argv = [path, *namespace_argv(disable_userns=disable_userns), *system_argv(system_folders())]
        argv += ["--proc", "/proc", "--dev", "/dev", *proc_argv(masked_files()), "--", "/usr/bin/true"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if done.returncode == 0:
            return SandboxProbe(path, disable_userns)
        said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return SandboxProbe(
        "",
        reason=(
            f"Workspaces are not kept apart: bubblewrap does not work here ({said}). "
            "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0) or run on a host that does."
        ),
    )
