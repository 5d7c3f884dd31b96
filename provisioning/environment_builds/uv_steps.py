"""uv's part of a build: its programs, arguments and variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from provisioning.drivers.local import environment
from provisioning.environment_builds import index, pythons, sources
from provisioning.environment_builds.cell import INSIDE, Cell, CellMount, CellStep
from provisioning.environment_builds.failures import BuildError, classify
from provisioning.environment_builds.outcome import read_text
from provisioning.environment_messages import BuildFailure, BuildStage


class Uv:
    """uv's part of a build."""

    def __init__(
        self,
        cell: Cell,
        uv: str,
        python: pythons.Python,
        packages: index.PackageIndex,
        write: Callable[[str], object],
        check_limits: Callable[[], object],
    ) -> None:
        self.cell = cell
        self.requirements: tuple[tuple[int, str], ...] = ()
        self._uv = uv
        self._python = python
        self._packages = packages
        self._write = write
        self._check_limits = check_limits

    def resolved(self, source: sources.RequirementsSource, work: Path) -> str:
        """Resolve a source and return the lock. Code of packages may run to determine their dependencies."""
        self.requirements = source.requirements
        folder = work / "resolve"
        folder.mkdir(mode=0o700)
        (folder / source.file_name).write_text(source.text)
        (folder / "always.in").write_text("\n".join(sources.ALWAYS) + "\n")
        self.cell.hand_over(folder)
        inside = f"{INSIDE}/resolve" if self.cell.sandboxed else str(folder)
        argv = [
            "pip", "compile", "--generate-hashes", "--no-header", "--no-emit-index-url", "--quiet",
            "--python", self._python.executable, "--output-file", f"{inside}/lock.txt",
            f"{inside}/{source.file_name}", f"{inside}/always.in",
        ]  # fmt: skip
        code, lines = self._run(
            argv,
            [CellMount(str(folder), inside, writable=True)],
            f"{self.cell.temporary}/cache",
            foreign=True,
        )
        if code:
            raise classify(lines, source.requirements, resolving=True)
        lock = read_text(folder / "lock.txt", "lock file")
        for line in lock.splitlines():
            if re.match(r"[A-Za-z0-9]", line):
                self._write(line.rstrip(" \\"))
        return lock

    def make_venv(self, place: str, shown: list[CellMount], *, foreign: bool = False) -> None:
        argv = ["venv", "--no-project", "--offline", "--python", self._python.executable, place]
        code, lines = self._run(argv, shown, f"{self.cell.temporary}/cache", foreign=foreign)
        if code:
            raise classify(lines, (), resolving=False)

    def sync(
        self,
        place: str,
        cache: str,
        work: Path,
        shown: list[CellMount],
        *,
        wheels_only: bool,
        progress: Callable[[BuildStage], object],
    ) -> list[str] | None:
        """Install the packages of the lock; return None, or the output lines of a failure."""
        lock = f"{INSIDE}/lock.txt" if self.cell.sandboxed else str(work / "lock.txt")
        argv = [
            "pip",
            "sync",
            "--require-hashes",
            "--python",
            f"{place}/bin/python",
            "--link-mode",
            "hardlink",
        ]
        argv += ["--no-build"] if wheels_only else []
        stage = BuildStage.DOWNLOADING

        def follow(line: str) -> None:
            nonlocal stage
            if line.startswith("Prepared "):
                stage = BuildStage.INSTALLING
            if not line.startswith(" + "):
                self._write(line)

        def check_limits() -> None:
            self._check_limits()
            progress(stage)

        shown = [*shown, CellMount(str(work / "lock.txt"), f"{INSIDE}/lock.txt")]
        code, lines = self._run([*argv, lock], shown, cache, follow, check_limits, foreign=not wheels_only)
        return lines if code else None

    def _run(
        self,
        argv: list[str],
        shown: list[CellMount],
        cache: str,
        follow: Callable[[str], object] | None = None,
        check_limits: Callable[[], object] | None = None,
        *,
        foreign: bool,
    ) -> tuple[int, list[str]]:
        program = f"{INSIDE}/uv" if self.cell.sandboxed else self._uv
        folders = [CellMount(path, path) for path in self._packages.folders]
        if self._packages.certificates:
            folders.append(CellMount(self._packages.certificates, self._packages.certificates))
        environ = {
            **self._packages.environ(),
            "UV_CACHE_DIR": cache,
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
        }
        step = CellStep(
            [program, *argv],
            [*shown, *folders, CellMount(self._uv, f"{INSIDE}/uv")],
            environ,
            index=True,
            foreign=foreign,
        )
        return self.cell.run(step, follow or self._write, check_limits or self._check_limits)


def find_uv() -> str:
    """Return the uv installed with Berth, or the system's. Raises `BuildError`."""
    program = environment.uv_program()
    if not program:
        raise BuildError(
            BuildFailure.UV_MISSING,
            "The program uv is not installed on the node. Run `make environment` in Berth's folder there.",
        )
    return program
