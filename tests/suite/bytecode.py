"""Bytecode of the test files, compiled once before the phases start.

pytest rewrites the assertions of each file that it imports, which takes a third of the time of collecting. In
a fresh clone, each process of each phase would rewrite all files, since they start at the same moment. The
modules of the product are compiled here for the same reason.
"""

from __future__ import annotations

import ast
import compileall
import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import rewrite

from tests.suite.phases import ROOT

PROCESSES = 2
FEW = 50
"""Up to this many files are compiled by the phases, without a step of their own."""
PRODUCT = (ROOT / "portal", ROOT / "provisioning")


def stale(root: Path = ROOT) -> list[Path]:
    """Return the test files below `root`/tests without current bytecode of pytest."""
    return [path for path in sorted((root / "tests").rglob("test_*.py")) if not _is_current(path)]


def _is_current(path: Path) -> bool:
    try:
        compiled = (path.parent / "__pycache__" / f"{path.stem}{rewrite.PYC_TAIL}").stat()
    except OSError:
        return False
    return compiled.st_mtime >= path.stat().st_mtime


def compile_all(files: Sequence[Path], folders: Sequence[Path] = PRODUCT) -> None:
    """Compile test files as pytest does, and the modules in `folders`.

    What does not compile is left to the phases, which report it.
    """
    for folder in folders:
        compileall.compile_dir(folder, quiet=2, workers=PROCESSES)
    with ProcessPoolExecutor(PROCESSES) as pool:
        list(pool.map(_compile, files, chunksize=16))


def _compile(path: Path) -> None:
    source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=str(path))
        rewrite.rewrite_asserts(tree, source, str(path))
        code = compile(tree, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    target = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    with part.open("wb") as file:
        rewrite._write_pyc_fp(file, importlib.util.source_hash(source), code)
    part.replace(target)
