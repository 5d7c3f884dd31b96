"""Python interpreters of this node: its own, and those of uv. Downloads are optional."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local.environment import prefixes_of, visible_folders
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure

QUERY_TIMEOUT_S = 30.0
DOWNLOAD_TIMEOUT_S = 600.0
DOWNLOADS = "BERTH_NODE_PYTHON_DOWNLOADS"
_QUERY = """
import json, sys, sysconfig
print(json.dumps([sys.implementation.name, "%d.%d.%d" % sys.version_info[:3],
    getattr(sys, "_base_executable", "") or sys.executable, sys.base_prefix]))
"""


@dataclass(frozen=True, slots=True)
class Python:
    """An installed interpreter: `bases` are the folders outside /usr that it needs."""

    version: str
    executable: str
    bases: tuple[str, ...]

    @property
    def minor(self) -> str:
        """Major and minor version, such as 3.12."""
        return ".".join(self.version.split(".")[:2])


def find(minor: str, *, uv: str, downloads: Path) -> Python:
    """Return the newest interpreter of a version such as 3.12, preferably the node's. Raises `BuildError`."""
    # uv starts every interpreter of the machine to list them, which takes half a second.
    own = _node_python()
    if own is not None and own.minor == minor:
        return own
    available = installed_pythons(uv, downloads)
    matching = [python for python in available if python.minor == minor]
    if not matching and os.environ.get(DOWNLOADS) == "1":
        _download(minor, uv, downloads)
        matching = [python for python in installed_pythons(uv, downloads) if python.minor == minor]
    if matching:
        return matching[0]
    versions = ", ".join(sorted({python.version for python in available})) or "none"
    raise BuildError(
        BuildFailure.NO_PYTHON,
        f"Python {minor} is not installed on the node (installed: {versions}). Choose an installed version, "
        f"or ask an operator to install Python {minor}.",
    )


def installed_pythons(uv: str, downloads: Path) -> list[Python]:
    """Return every CPython of this machine by its real path: this node's own, then newest first."""
    own = _node_python()
    pythons: dict[str, Python] = {own.executable: own} if own else {}
    for path in _listed_paths(uv, downloads):
        python = _inspect(path)
        if python is not None and python.executable not in pythons:
            pythons[python.executable] = python
    other_pythons = [python for python in pythons.values() if python is not own]
    other_pythons.sort(key=lambda python: [int(part) for part in python.version.split(".")], reverse=True)
    return ([own] if own else []) + other_pythons


def _node_python() -> Python | None:
    return _inspect(str(getattr(sys, "_base_executable", "") or sys.executable))


def _listed_paths(uv: str, downloads: Path) -> Iterable[str]:
    argv = [uv, "python", "list", "--only-installed", "--no-python-downloads", "--no-config"]
    try:
        process = subprocess.run(
            [*argv, "--output-format", "json"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
            env=_environ(downloads),
        )
        return [
            str(entry["path"]) for entry in json.loads(process.stdout) if entry["implementation"] == "cpython"
        ]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return []


def _inspect(path: str) -> Python | None:
    try:
        process = subprocess.run(
            [path, "-I", "-S", "-c", _QUERY],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
        name, version, executable, base = json.loads(process.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    real = Path(os.path.realpath(executable))
    if name != "cpython" or not re.fullmatch(r"3\.\d+\.\d+", version) or not real.exists():
        return None
    bases = visible_folders([Path(base), *prefixes_of(Path(executable)), real.parent.parent])
    return Python(version, str(real), bases)


def _download(minor: str, uv: str, downloads: Path) -> None:
    subprocess.run(
        [uv, "python", "install", "--no-config", "--no-bin", minor],
        capture_output=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
        env=_environ(downloads),
    )


def _environ(downloads: Path) -> dict[str, str]:
    return {**os.environ, "UV_PYTHON_INSTALL_DIR": str(downloads)}
