"""Precompile programs for workspaces, which cannot write bytecode to their read-only folders."""

from __future__ import annotations

import compileall
import contextlib
import sys
from pathlib import Path


def make(root: Path) -> None:
    """Compile bytecode for this Python version in the folders below `root`.

    Skips files that are up to date, and folders that are not writable: there the installer has compiled the
    files, or each start compiles them, as with a Python of another version.
    """
    if sys.dont_write_bytecode:
        return
    for folder in sorted({path.parent for path in root.glob("*/**/*.py")}):
        compileall.compile_dir(folder, maxlevels=0, quiet=2)
        _make_readable(folder)


def _make_readable(folder: Path) -> None:
    """Give the bytecode the read permissions of its source, regardless of the umask."""
    cache = folder / "__pycache__"
    with contextlib.suppress(OSError):
        for path in (*cache.glob("*.pyc"), cache):
            mode = (folder if path == cache else next(folder.glob("*.py"))).stat().st_mode & 0o755
            if path.stat().st_mode & 0o777 != mode:
                path.chmod(mode)
