"""Folders of a node that can be mounted in workspaces: naming, listing and requests.

A node lists them in `BERTH_MOUNTS`, as `imagenet=/srv/imagenet scratch=/srv/scratch:rw`; a template refers to
them as `imagenet` or `scratch:rw`. Messages never contain paths: only the node decides which folder a name
means, and whether it is writable. Workspaces see it as `/data/NAME`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.errors import InvalidSpec, MissingDependency, ProvisioningError

VARIABLE = "BERTH_MOUNTS"
NEED = "mount:"
"""Prefix of the need for a folder, and of what a node provides."""
WRITABLE = ":rw"
INSIDE = "/data"
MAX_FOLDERS = 8
"""Maximum number of folders per workspace."""
WORD = re.compile(r"[a-z0-9][a-z0-9-]{0,39}(:rw)?")
"""Name in a template: a folder for reading, or with `:rw` also for writing."""
READ_TIMEOUT_S = 2.0
"""Time limit for reading a folder: a file server that is down may never answer."""
_LISTED = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]{0,39})=(?P<path>/[^\s:]*)(?P<writable>:rw)?")
_probes: dict[str, _FolderProbe] = {}


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder of a node's list; `path` is as written there."""

    name: str
    path: str
    writable: bool


@dataclass(frozen=True, slots=True)
class MountedFolder:
    """A folder as mounted in one workspace: path on the node, path inside, and whether it is writable."""

    source: Path
    inside: str
    writable: bool


@dataclass(frozen=True, slots=True)
class FolderOffer:
    """The listed folders that a node can provide, as needs, and a warning for each unusable folder."""

    provides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_folders(text: str) -> Mapping[str, ListedFolder]:
    """Parse a node's list; return folders by name without accessing them.

    Raises `InvalidSpec`, with the fix, for a malformed or repeated entry.
    """
    folders: dict[str, ListedFolder] = {}
    for entry in text.split():
        match = _LISTED.fullmatch(entry)
        if match is None:
            raise InvalidSpec(
                f"{VARIABLE} has an invalid entry: “{entry[:100]}”. Write NAME=/folder or NAME=/folder:rw."
            )
        if match["name"] in folders:
            raise InvalidSpec(f"{VARIABLE} has {match['name']} twice. Remove one entry.")
        folders[match["name"]] = ListedFolder(match["name"], match["path"], match["writable"] is not None)
    return folders


def folder_offer(text: str, *, own: Iterable[Path], sandboxed: bool) -> FolderOffer:
    """Return what a node with this list provides: existing folders, if it has a sandbox.

    `own` are folders that hold Berth's state and homes.
    """
    try:
        folders = parse_folders(text)
    except InvalidSpec as error:
        return FolderOffer(warnings=(str(error),))
    if folders and not sandboxed:
        return FolderOffer(
            warnings=(
                f"The folders of {VARIABLE} need a sandbox, which this node does not have. "
                "Set BERTH_SANDBOX=auto, or remove the folders.",
            )
        )
    needs, warnings = [], []
    for folder in folders.values():
        try:
            _source(folder, own)
        except ProvisioningError as error:
            warnings.append(str(error))
            continue
        needs.append(need_of(folder.name))
        if folder.writable:
            needs.append(need_of(folder.name + WRITABLE))
    return FolderOffer(tuple(needs), tuple(warnings))


def mounts_for(entries: Iterable[str], text: str, *, own: Iterable[Path]) -> tuple[MountedFolder, ...]:
    """Return the folders to mount for the names of a template.

    Raises `MissingDependency` if the node does not list a folder, or lists it read-only, and `InvalidSpec`
    for a malformed list.
    """
    folders, mounts = parse_folders(text), []
    for entry in entries:
        name, writable = entry.removesuffix(WRITABLE), entry.endswith(WRITABLE)
        folder = folders.get(name)
        if folder is None:
            raise MissingDependency(
                f"This machine has no folder “{name}”. Add the folder to {VARIABLE} there, or choose another "
                "template."
            )
        if writable and not folder.writable:
            raise MissingDependency(
                f"The folder “{name}” is read-only on this machine. Add “:rw” to its entry in {VARIABLE} "
                "there, or make the folder read-only in the template."
            )
        mounts.append(MountedFolder(_source(folder, own), path_inside(name), writable))
    return tuple(mounts)


def need_of(name: str) -> str:
    """Return the need for a name of a template."""
    return f"{NEED}{name}"


def path_inside(name: str) -> str:
    """Return the path in a workspace for a name of a template."""
    return f"{INSIDE}/{name.removesuffix(WRITABLE)}"


def _source(folder: ListedFolder, own: Iterable[Path]) -> Path:
    """Return the resolved folder.

    Raises `MissingDependency` if it does not exist or does not answer, and `InvalidSpec` if it overlaps with
    Berth's own folders.
    """
    probe = _probes.get(folder.path)
    if probe is None:
        probe = _probes[folder.path] = _FolderProbe(folder.path)
        probe.start()
    probe.join(READ_TIMEOUT_S)
    if probe.is_alive():
        raise MissingDependency(
            f"The folder {folder.path} ({folder.name} of {VARIABLE}) does not answer. Check its file server."
        )
    _probes.pop(folder.path, None)
    if probe.folder is None:
        raise MissingDependency(
            f"{VARIABLE} has {folder.name}={folder.path}, which is not a folder on this machine. "
            "Create the folder, or remove the entry."
        )
    for own_folder in own:
        if (
            probe.folder == own_folder
            or probe.folder in own_folder.parents
            or own_folder in probe.folder.parents
        ):
            raise InvalidSpec(
                f"{VARIABLE} has {folder.name}={folder.path}, where Berth stores its own files or homes. "
                "Choose a folder outside of these."
            )
    return probe.folder


class _FolderProbe(threading.Thread):
    """Checks a folder in a thread, which may block forever; one at a time per folder."""

    def __init__(self, path: str) -> None:
        super().__init__(name=f"look at {path}", daemon=True)
        self._path = path
        self.folder: Path | None = None

    def run(self) -> None:
        path = Path(os.path.realpath(self._path))
        self.folder = path if path.is_dir() else None
