"""Bytecode of the test files, compiled once before the phases start.

pytest rewrites the assertions of each file that it imports, which takes a third of the time of collecting. In
a fresh clone, each process of each phase would rewrite all files, since they start at the same moment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from _pytest.assertion.rewrite import PYC_TAIL

from tests.suite.phases import ROOT

PROCESSES = 2
FEW = 50
"""So many files are compiled on the way, without a step of its own."""


def stale(root: Path = ROOT) -> list[Path]:
    """Return the test files below `root`/tests without current bytecode of pytest."""
    return [path for path in sorted((root / "tests").rglob("test_*.py")) if not _is_current(path)]


def _is_current(path: Path) -> bool:
    try:
        compiled = (path.parent / "__pycache__" / f"{path.stem}{PYC_TAIL}").stat()
    except OSError:
        return False
    return compiled.st_mtime >= path.stat().st_mtime


def compile_all(files: Sequence[Path]) -> None:
    """Compile the files, in processes side by side. Failures are left to the phases, which report them."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    processes = [
        subprocess.Popen(
            [*collect, *map(str, files[index::PROCESSES])], cwd=ROOT, env=environ,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for index in range(PROCESSES)
    ]  # fmt: skip
    for process in processes:
        process.wait()
