"""Byte code of what runs in workspaces, which see its folders read-only: else each start compiled it anew."""

from __future__ import annotations

import compileall
import contextlib
import sys
from pathlib import Path


def make(root: Path) -> None:
    """Have byte code for this version of Python in the folders below `root`, as pip leaves it there.

    What is up to date is left alone. Where nothing can be written, whoever installed it has seen to it, or
    it is compiled at each start, as it is by a workspace's Python of another version.
    """
    if sys.dont_write_bytecode:
        return
    for folder in sorted({path.parent for path in root.glob("*/**/*.py")}):
        compileall.compile_dir(folder, maxlevels=0, quiet=2)
        _show(folder)


def _show(folder: Path) -> None:
    """Let users of workspaces read the byte code as they read its source, whatever the umask is here."""
    cache = folder / "__pycache__"
    with contextlib.suppress(OSError):
        for path in (*cache.glob("*.pyc"), cache):
            mode = (folder if path == cache else next(folder.glob("*.py"))).stat().st_mode & 0o755
            if path.stat().st_mode & 0o777 != mode:
                path.chmod(mode)
