"""Existing environments on a node: folders named by the node's own setting.

`BERTH_ENVIRONMENT_FOLDERS` contains absolute paths separated by spaces, in which `*` matches any name:
`/opt/conda/envs/* /srv/venvs/stable`. Messages identify a folder only by its digest, so no message makes a
node use a folder that its operator has not listed. Folders are inspected by reading text: nothing in them is
executed, written or removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.environment_messages import MAX_PACKAGES, Package

VARIABLE = "BERTH_ENVIRONMENT_FOLDERS"
MAX_FOLDERS = 64
MAX_PATH = 200
MAX_METADATA = 16 * 1024
MAX_PROGRAMS = 1024
FRESH_S = 30.0
"""How long the contents of a folder are cached, unless its `bin` or `site-packages` has changed."""
OLDEST = (3, 10)
"""Oldest Python that runs a workspace's agent."""
_SITE = re.compile(r"python(3)\.(\d{1,2})")
_PLAIN = re.compile(r"/[A-Za-z0-9._+@/-]*")
_PROGRAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_CONDA = re.compile(r"python-(3\.\d{1,2}\.\d{1,3})-")


@dataclass(frozen=True, slots=True)
class Folder:
    """Contents of a folder: `python` as 3.11, `python_version` as 3.11.7 if known."""

    path: str
    digest: str
    python: str
    python_version: str
    programs: tuple[str, ...]
    packages: tuple[Package, ...]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the folder, equal if Python and packages are equal."""
        return fingerprint_of(self.python, ((package.name, package.version) for package in self.packages))


def digest_of_folder(path: str) -> str:
    """Return the digest that identifies a folder in messages; it depends on the path, not the contents."""
    return hashlib.sha256(json.dumps(["folder", path]).encode()).hexdigest()[:32]


def fingerprint_of(python: str, packages: Iterable[tuple[str, str]]) -> str:
    """Return equal fingerprints for the same Python (as 3.11) and the same package versions."""
    rows = [python, *sorted(f"{name.lower()}=={version}" for name, version in packages)]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def is_plain(path: str) -> bool:
    """Return whether the path is absolute and normalized: no `..`, spaces or repeated slashes."""
    return len(path) <= MAX_PATH and bool(_PLAIN.fullmatch(path)) and os.path.normpath(path) == path != "/"


def named_folders(environ: Mapping[str, str], *, never: Iterable[Path] = ()) -> list[str]:
    """Return the existing folders that the setting names, as resolved paths.

    Skips links (their target must be named instead), folders that contain or are inside a folder of `never`,
    and world-writable folders.
    """
    places: dict[str, None] = {}
    forbidden = [Path(os.path.realpath(folder)) for folder in never]
    for pattern in environ.get(VARIABLE, "").split():
        if not pattern.startswith("/") or ".." in pattern.split("/"):
            continue
        for match in sorted(map(str, Path("/").glob(pattern.strip("/") or ".")))[: MAX_FOLDERS * 4]:
            place = Path(os.path.realpath(Path(match).parent)) / Path(match).name
            try:
                facts = place.lstat()
            except OSError:
                continue
            if not stat.S_ISDIR(facts.st_mode) or facts.st_mode & stat.S_IWOTH or not is_plain(str(place)):
                continue
            if any(place.is_relative_to(folder) or folder.is_relative_to(place) for folder in forbidden):
                continue
            places[str(place)] = None
    return list(places)[:MAX_FOLDERS]


def read(path: str) -> Folder | None:
    """Inspect a folder; None if it has no Python that workspaces can use."""
    root = Path(path)
    sites = sorted(site for site in root.glob("lib/python3.*/site-packages") if site.is_dir())
    minor = _SITE.fullmatch(sites[0].parent.name) if len(sites) == 1 else None
    if minor is None or (int(minor[1]), int(minor[2])) < OLDEST:
        return None
    if not os.access(root / "bin" / "python3", os.X_OK):
        return None
    packages = sorted(
        filter(None, map(_package, sites[0].glob("*.dist-info"))), key=lambda package: package.name.lower()
    )
    return Folder(
        path=path,
        digest=digest_of_folder(path),
        python=f"{minor[1]}.{minor[2]}",
        python_version=_version(root) or f"{minor[1]}.{minor[2]}",
        programs=_programs(root / "bin"),
        packages=tuple(packages[:MAX_PACKAGES]),
    )


class Folders:
    """The folders of this node, read again after a change."""

    def __init__(self, paths: Callable[[], list[str]]) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[float, tuple[int, ...], Folder | None]] = {}

    def all(self) -> list[Folder]:
        return [folder for path in self._paths() if (folder := self._read(path)) is not None]

    def find(self, digest: str) -> Folder | None:
        """Return the folder with this digest if the setting still names it."""
        for path in self._paths():
            if digest_of_folder(path) == digest:
                return self._read(path)
        return None

    def _read(self, path: str) -> Folder | None:
        marks = _marks(path)
        with self._lock:
            at, before, folder = self._cache.get(path, (0.0, (), None))
            if before != marks or time.monotonic() - at > FRESH_S:
                folder = read(path)
                self._cache[path] = (time.monotonic(), marks, folder)
        return folder


def _marks(path: str) -> tuple[int, ...]:
    marks = []
    for place in (Path(path) / "bin", *sorted(Path(path).glob("lib/python3.*/site-packages"))):
        try:
            marks.append(place.stat().st_mtime_ns)
        except OSError:
            marks.append(0)
    return (1, *marks)


def _programs(folder: Path) -> tuple[str, ...]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return ()
    names = [
        entry.name
        for entry in entries
        if _PROGRAM.fullmatch(entry.name) and entry.is_file() and os.access(entry.path, os.X_OK)
    ]
    return tuple(names[:MAX_PROGRAMS])


def _package(info: Path) -> Package | None:
    name = version = ""
    for line in _text(info / "METADATA").splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip()
        elif key == "Version":
            version = value.strip()
    return Package(name[:200], version[:100]) if name and version else None


def _version(root: Path) -> str:
    """Return the Python version from `pyvenv.cfg` of a virtual environment, or from conda's metadata."""
    for line in _text(root / "pyvenv.cfg").splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info"):
            return ".".join(value.strip().split(".")[:3])[:20]
    for note in sorted(root.glob("conda-meta/python-3.*.json")):
        if match := _CONDA.match(note.name):
            return match[1]
    return ""


def _text(path: Path) -> str:
    """Return the beginning of a regular file that is not a link; otherwise an empty string."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            return file.read(MAX_METADATA).decode("utf-8", "replace")
    except OSError:
        return ""
