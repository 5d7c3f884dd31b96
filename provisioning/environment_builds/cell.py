"""Sandbox for the steps of a build, and the loop that enforces a step's limits.

Each step sees the system's programs, a Python installation, uv and the files shown to it; no home, no files
of the portal, no other environment. Its network is isolated, except for access to the package index in steps
that need it. On a machine with one user that cannot create sandboxes, steps run without one, like workspaces.

If root runs the node and workspaces have their own users, steps that may run code of packages also run as a
separate user, in folders of that user. Files that other builds and the node use belong to root.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioning.drivers.local import cgroups, cpu_count, processes, staging
from provisioning.drivers.local.isolation import SandboxProbe, filter_files, masked_files, system_folders
from provisioning.drivers.local.sandbox import (
    ETC_OWN,
    ETC_SHARED,
    etc_files,
    namespace_argv,
    proc_argv,
    system_argv,
)
from provisioning.drivers.local.staging import Mount
from provisioning.environment_builds import gate
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure
from provisioning.environments.store import size_kib

HERE = Path(__file__).resolve().parent
INSIDE = "/run/berth"
GROUP = "environment-build"
USER = "build"
NICE = 10
POLL_INTERVAL_S = 0.2
DISK_POLL_INTERVAL_S = 2.0
END_TIMEOUT_S = 10.0
MAX_LINE = 4000
MAX_LOG_LINES = 2000
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Limits of a build: time until `deadline` (monotonic), disk, and CPU and memory as for a workspace.

    `keep_free_mib` of the disk remain free for workspaces.
    """

    deadline: float
    disk_mib: int
    keep_free_mib: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class CellMount:
    """A folder or file visible to a step: `outside` on the host, `inside` in the sandbox."""

    outside: str
    inside: str
    writable: bool = False


@dataclass(slots=True)
class CellStep:
    """One program to run. `foreign`: it may run code of packages."""

    argv: Sequence[str]
    shown: Sequence[CellMount]
    env: Mapping[str, str] = field(default_factory=dict)
    index: bool = False
    foreign: bool = False


@dataclass(slots=True)
class Cell:
    """The sandbox of one build. `folder` is its own folder; `bases` are folders that its Python needs."""

    folder: Path
    sandbox: SandboxProbe
    host: cgroups.CgroupHost
    limits: CellLimits
    bases: tuple[str, ...]
    python: str
    watched: list[Path] = field(default_factory=list)
    filters: Path = Path()

    @property
    def sandboxed(self) -> bool:
        return bool(self.sandbox.bwrap)

    def inside(self, name: str) -> str:
        """Return the path of a program of this package inside a step."""
        return f"{INSIDE}/{name}" if self.sandboxed else str(HERE / name)

    @property
    def temporary(self) -> str:
        return "/tmp" if self.sandboxed else str(self.folder / "tmp")  # noqa: S108 - the sandbox's own

    @property
    def uid(self) -> int | None:
        """User id of foreign steps; None if they run as the node's user."""
        return self.sandbox.uids.builds if self.sandboxed and self.sandbox.uids is not None else None

    def tmp(self, *, foreign: bool) -> Path:
        """Return the host folder of `temporary`. Foreign and other steps never read each other's."""
        return self.folder / ("tmp-foreign" if foreign and self.uid is not None else "tmp")

    def hand_over(self, folder: Path) -> None:
        """Give the folder to the user of foreign steps. Raises `OSError`."""
        if self.uid is not None:
            _chown(folder, self.uid)

    def take_back(self, folder: Path) -> None:
        """Return the folder to the node's user after the step. Raises `OSError`."""
        if self.uid is not None:
            _chown(folder, os.geteuid())

    def prepare(self) -> None:
        """Create the folders of the build. Raises `OSError`."""
        (self.folder / "etc").mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in {self.tmp(foreign=False), self.tmp(foreign=True)}:
            for folder in (path, path / "home"):
                folder.mkdir(mode=0o700, exist_ok=True)
        self.hand_over(self.tmp(foreign=True))
        for name, text in etc_files(USER, USER, system_hosts="", resolv_conf="").items():
            (self.folder / "etc" / name).write_text(text)
            (self.folder / "etc" / name).chmod(0o644)
        cgroups.remove(cgroups.paths(self.host, GROUP))

    def run(
        self, step: CellStep, on_line: Callable[[str], object], check_limits: Callable[[], object]
    ) -> tuple[int, list[str]]:
        """Run a step to its end; return exit code and last lines. Raises `BuildError` if a limit is exceeded.

        `check_limits` is called regularly and aborts the step by raising. All processes of the step have
        ended when this returns.
        """
        groups: tuple[Path, ...] = ()
        if self.host.version:
            groups = cgroups.create(
                self.host, GROUP, cpu_milli=self.limits.cpu_milli, memory_mib=self.limits.memory_mib
            )
        lines: list[str] = []
        try:
            with self._start(step, groups) as process:
                try:
                    self._follow(process, lines, on_line, check_limits)
                finally:
                    self._end(process, groups)
            if process.returncode and cgroups.oom_kills(groups):
                raise BuildError(
                    BuildFailure.BUILD_FAILED,
                    f"The build exceeded its memory limit of {self.limits.memory_mib} MiB. Choose package "
                    "versions that have a wheel for this Python.",
                )
        finally:
            self._remove(groups)
        return process.returncode, lines

    # -- parts ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _start(self, step: CellStep, groups: Sequence[Path]):  # type: ignore[no-untyped-def]
        env = {
            "HOME": f"{self.temporary}/home",
            "TMPDIR": self.temporary,
            "LANG": "C.UTF-8",
            "PATH": SYSTEM_PATH,
            "USER": USER,
            **cpu_count.variables(self.limits.cpu_milli),
            **(gate.environ() if step.index and self.sandboxed else {}),
            **step.env,
        }
        uid, mounts = self.uid if step.foreign else None, list[Mount]()
        argv = (
            self._argv(step, env, mounts if uid is not None else None) if self.sandboxed else list(step.argv)
        )
        bytes_limit = self.limits.disk_mib << 20
        rlimits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": bytes_limit}
        if not self.host.version:
            rlimits["RLIMIT_DATA"] = self.limits.memory_mib << 20
        plan = {
            "argv": argv,
            "env": {} if self.sandboxed else env,
            "cgroup_procs": [str(group / "cgroup.procs") for group in groups],
            "rlimits": rlimits,
            "nice": NICE,
            "umask": 0o022,
            "files": filter_files(self.filters, self.sandbox) if self.sandboxed else {},
            "user": staging.user(uid, mounts) if uid is not None else None,
            "code": str(staging.AS_USER.parent),
        }
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(HERE / "confine.py"), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd="/",
        ) as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(plan).encode())
                process.stdin.close()
            yield process

    def _argv(self, step: CellStep, env: Mapping[str, str], mounts: list[Mount] | None) -> list[str]:
        """Return the sandbox's command line. `mounts` collects bind mounts for access by another user."""
        sandbox = self.sandbox
        bwrap = sandbox.bwrap
        if mounts is not None:
            bwrap, of_program = staging.staged_program(bwrap)
            mounts += of_program

        def bind(outside: str | Path, inside: str, *, writable: bool = False) -> list[str]:
            source = str(outside)
            if mounts is not None:
                mounts.append(staging.mount(source, str(len(mounts)), readonly=not writable))
                source = str(mounts[-1]["target"])
            return ["--bind" if writable else "--ro-bind", source, inside]

        argv = [bwrap, *namespace_argv(disable_userns=sandbox.disable_userns, own_network=True)]
        argv += ["--die-with-parent", "--hostname", USER]
        if sandbox.seccomp:
            argv += ["--seccomp", "{seccomp}"]
        argv += system_argv(system_folders())
        for path in ETC_SHARED:
            argv += ["--ro-bind-try", path, path]
        for name in ETC_OWN:
            argv += bind(self.folder / "etc" / name, f"/etc/{name}")
        argv += ["--proc", "/proc", "--dev", "/dev", *proc_argv(masked_files())]
        argv += ["--tmpfs", "/run", "--tmpfs", "/var/tmp"]  # noqa: S108 - the sandbox's own
        argv += bind(self.tmp(foreign=step.foreign), "/tmp", writable=True)  # noqa: S108
        argv += ["--ro-bind-try", "/sys/devices/system", "/sys/devices/system"]
        for path in self.bases:
            argv += bind(path, path)
        for name in ("bridge.py", "finishing.py", "preload_check.py", "npm_inside.py"):
            argv += bind(HERE / name, f"{INSIDE}/{name}")
        for shown in step.shown:
            argv += bind(shown.outside, shown.inside, writable=shown.writable)
        if step.index:
            argv += bind(self.folder / "index.sock", f"{INSIDE}/index.sock")
        argv += ["--chdir", "/tmp", "--clearenv"]  # noqa: S108 - the sandbox's own
        for key, value in sorted(env.items()):
            argv += ["--setenv", key, value]
        argv += ["--"]
        if step.index:
            argv += [self.python, "-I", "-S", f"{INSIDE}/bridge.py", f"{INSIDE}/index.sock", str(gate.PORT)]
        return [*argv, *step.argv]

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        lines: list[str],
        on_line: Callable[[str], object],
        check_limits: Callable[[], object],
    ) -> None:
        """Read the output until its end, and enforce the limits meanwhile."""
        assert process.stdout is not None
        descriptor, rest, checked_at = process.stdout.fileno(), b"", time.monotonic()
        wait = DISK_POLL_INTERVAL_S
        while True:
            if select.select([descriptor], [], [], POLL_INTERVAL_S)[0]:
                data = os.read(descriptor, 65536)
                if not data:
                    break
                *complete, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE:
                    complete, rest = [*complete, rest], b""
                for line in complete:
                    self._line(line, lines, on_line)
            check_limits()
            if time.monotonic() > self.limits.deadline:
                raise BuildError(BuildFailure.TIMED_OUT, "The build exceeded its time limit. Try again.")
            if time.monotonic() - checked_at > wait:
                begun = time.monotonic()
                self.check_disk()
                checked_at = time.monotonic()
                wait = max(
                    DISK_POLL_INTERVAL_S, 5 * (checked_at - begun)
                )  # a large environment takes a while to measure
        if rest:
            self._line(rest, lines, on_line)

    def _line(self, data: bytes, lines: list[str], on_line: Callable[[str], object]) -> None:
        line = data.decode("utf-8", "replace").rstrip("\r").replace("\0", "")[:MAX_LINE]
        lines.append(line)
        del lines[:-MAX_LOG_LINES]
        on_line(line)

    def check_disk(self) -> None:
        """Raise `BuildError` if the build exceeds its disk limit, or the disk is nearly full."""
        used_mib = sum(size_kib(path) for path in (*self.watched, self.folder)) >> 10
        if used_mib > self.limits.disk_mib:
            raise BuildError(
                BuildFailure.TOO_LARGE,
                f"The build exceeded its disk limit of {self.limits.disk_mib} MiB. Remove packages.",
            )
        if shutil.disk_usage(self.folder).free >> 20 < self.limits.keep_free_mib:
            raise BuildError(
                BuildFailure.DISK_FULL, "The disk of the node is full. Free disk space, then build again."
            )

    def _end(self, process: subprocess.Popen[bytes], groups: Sequence[Path]) -> None:
        """Kill the process and everything that it has started."""
        until = time.monotonic() + END_TIMEOUT_S
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if process.poll() is None:
                process.kill()
            left = cgroups.pids(groups)
            processes.kill((), left)
            if (process.poll() is not None and not left) or time.monotonic() > until:
                return
            time.sleep(0.02)

    def _remove(self, groups: Sequence[Path]) -> None:
        until = time.monotonic() + END_TIMEOUT_S
        while not cgroups.remove(groups) and time.monotonic() < until:
            processes.kill((), cgroups.pids(groups))
            time.sleep(0.02)


def _chown(folder: Path, uid: int) -> None:
    """Change the owner of a folder and its contents without following links."""
    os.chown(folder, uid, uid, follow_symlinks=False)
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
