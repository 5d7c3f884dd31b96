"""Sources of workspaces' programs: the notebook environment, its base Python, the system."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.environments.store import EnvironmentStamp

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
PROGRAMS = ("jupyter-lab", "marimo", "code-server", "rserver", "bash")
FOLDERS = {"rserver": "/usr/lib/rstudio-server/bin"}
"""Folders in which packages install programs that are not on the search path."""
VARIABLE = "BERTH_NODE_PROGRAMS"
MAX_NAMED = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,79}")
PREFIX_PARTS = ("bin", "lib", "lib64", "include", "share", "ssl")


@dataclass(frozen=True, slots=True)
class Environment:
    """`python` runs the agent; `bin_dirs` is the search path; `readonly` folders appear at the same path.

    If `preloadable`, its apps can be imported in advance with the modules `preload`, as far as known.
    """

    python: str
    bin_dirs: tuple[str, ...]
    readonly: tuple[str, ...]
    exists: bool
    preload: tuple[str, ...] = ()
    preloadable: bool = True

    def which(self, program: str) -> str:
        """Return the path of `program` on the search path, or an empty string."""
        own = FOLDERS.get(program)
        for folder in (*self.bin_dirs, *([own] if own else [])):
            path = os.path.join(folder, program)  # noqa: PTH118 - symlinks stay as they are
            if os.access(path, os.X_OK) and not Path(path).is_dir():
                return path
        return ""

    def programs(self) -> dict[str, str]:
        return {name: self.which(name) for name in PROGRAMS}


def parse_names(text: str) -> tuple[str, ...]:
    """Return the space-separated names in `BERTH_NODE_PROGRAMS`, without invalid ones."""
    names = dict.fromkeys(name for name in text.split() if _NAME.fullmatch(name))
    return tuple(names)[:MAX_NAMED]


def uv_program() -> str:
    """Return Berth's own uv, or the system's; an empty string if there is none."""
    try:
        # Optional: the system may have another uv.
        from uv import find_uv_bin

        return str(Path(find_uv_bin()).resolve())
    except (ImportError, FileNotFoundError):
        path = shutil.which("uv")
        return str(Path(path).resolve()) if path else ""


def resolve(root: Path) -> Environment:
    """Return the environment at `root`, or else this interpreter's base and the system."""
    # `make up` keeps each environment in a folder behind a link; its scripts name the folder.
    root = Path(os.path.realpath(root))
    python = root / "bin" / "python3"
    if python.exists():
        bases = _base_prefixes(root, python)
        dirs = (str(root / "bin"), *SYSTEM_PATH)
        return Environment(str(python), dirs, (str(root), *visible_folders(bases)), exists=True)
    base = Path(sys.base_prefix)
    return Environment(
        python=str(Path(getattr(sys, "_base_executable", "") or sys.executable)),
        bin_dirs=(*SYSTEM_PATH, *([] if base == Path("/usr") else [str(base / "bin")])),
        readonly=visible_folders([base, Path(os.path.realpath(sys.executable)).parent.parent]),
        exists=False,
    )


def from_stamp(stamp: EnvironmentStamp) -> Environment:
    """Return a built environment. Reads nothing from its folder, in which code of packages has run.

    An existing environment is trusted like the node's own: its operator decides who may write it.
    """
    place = Path(stamp.place)
    if stamp.folder:
        return replace(resolve(place), preloadable=False)
    return Environment(
        str(place / "bin" / "python3"),
        (str(place / "bin"), *SYSTEM_PATH),
        (stamp.place, *stamp.bases),
        exists=True,
        preload=stamp.preload,
        preloadable=stamp.preloadable,
    )


def _base_prefixes(root: Path, python: Path) -> list[Path]:
    """Return the installations that the environment's interpreter depends on, by every name it uses."""
    prefixes = prefixes_of(python)
    try:
        for line in (root / "pyvenv.cfg").read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home" and value.strip():
                prefixes += [Path(value.strip()).parent, Path(os.path.realpath(value.strip())).parent]
    except OSError:
        pass  # not a venv but a separate installation
    return [prefix for prefix in prefixes if prefix != root]


def prefixes_of(python: Path) -> list[Path]:
    """Return the installations along an interpreter's chain of links."""
    prefixes = [Path(os.path.realpath(python)).parent.parent]
    link = python
    for _ in range(16):  # the sandbox needs every link of the chain
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / link.readlink()))
        prefixes.append(link.parent.parent)
    return prefixes


def visible_folders(prefixes: list[Path]) -> tuple[str, ...]:
    """Return the folders of `prefixes` that Python needs, without their siblings."""
    paths: dict[str, None] = {}
    for prefix in prefixes:
        if prefix in (Path("/"), Path("/usr")) or prefix.is_relative_to("/usr"):
            continue
        for part in PREFIX_PARTS:
            if (prefix / part).is_dir():
                paths[str(prefix / part)] = None
    return tuple(paths)
