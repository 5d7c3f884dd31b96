"""Folders of a node that workspaces may be shown: how they are named, listed and asked for.

A node lists them in `BERTH_MOUNTS`, as `imagenet=/srv/imagenet scratch=/srv/scratch:rw`; a template names
them, as `imagenet` or `scratch:rw`. A message never holds a path: which folder stands behind a name is its
node's to say, and so is whether it may be written to. In a workspace it is `/data/NAME`.
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
"""How the need of a folder begins, and what a node provides that has it."""
WRITABLE = ":rw"
INSIDE = "/data"
MOST = 8
"""How many one workspace is shown at most."""
WORD = re.compile(r"[a-z0-9][a-z0-9-]{0,39}(:rw)?")
"""What a template names: a folder for reading, or with `:rw` for writing, too."""
LOOK_S = 2.0
"""How long a folder may take to answer: that of a file server that is away answers never."""
_LISTED = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]{0,39})=(?P<path>/[^\s:]*)(?P<writable>:rw)?")
_looking: dict[str, _Look] = {}


@dataclass(frozen=True, slots=True)
class ListedFolder:
    """A folder of a node's list; `path` is the node's, as it stands there."""

    name: str
    path: str
    writable: bool


@dataclass(frozen=True, slots=True)
class ShownFolder:
    """A folder as one workspace gets it: the node's path, the path inside, and whether it may write there."""

    source: Path
    inside: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node provides of its list, as needs, and a sentence for each folder that it cannot show."""

    provides: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def listed(text: str) -> Mapping[str, ListedFolder]:
    """The folders of a node's list by name; no folder is looked at.

    Raises `InvalidSpec`, with the way out, for what cannot be read or stands there twice.
    """
    found: dict[str, ListedFolder] = {}
    for word in text.split():
        match = _LISTED.fullmatch(word)
        if match is None:
            raise InvalidSpec(f"{VARIABLE} holds “{word[:100]}”. Write NAME=/folder, or NAME=/folder:rw.")
        if match["name"] in found:
            raise InvalidSpec(f"{VARIABLE} names {match['name']} twice. Take one of them out.")
        found[match["name"]] = ListedFolder(match["name"], match["path"], match["writable"] is not None)
    return found


def offered(text: str, *, own: Iterable[Path], sandboxed: bool) -> Offer:
    """What a node with this list provides: the folders that are there, where a sandbox can show them.

    `own` are folders that hold Berth's state and homes.
    """
    try:
        folders = listed(text)
    except InvalidSpec as error:
        return Offer(warnings=(str(error),))
    if folders and not sandboxed:
        return Offer(
            warnings=(f"The folders of {VARIABLE} are shown in a sandbox only. There is none here.",)
        )
    needs, warnings = [], []
    for each in folders.values():
        try:
            _source(each, own)
        except ProvisioningError as error:
            warnings.append(str(error))
            continue
        needs.append(need_of(each.name))
        if each.writable:
            needs.append(need_of(each.name + WRITABLE))
    return Offer(tuple(needs), tuple(warnings))


def shown(words: Iterable[str], text: str, *, own: Iterable[Path]) -> tuple[ShownFolder, ...]:
    """What a workspace is shown for what its template names.

    Raises `MissingDependency` where the node has no such folder, or shows it for reading alone, and
    `InvalidSpec` for a list that cannot be read.
    """
    folders, found = listed(text), []
    for word in words:
        name, writable = word.removesuffix(WRITABLE), word.endswith(WRITABLE)
        folder = folders.get(name)
        if folder is None:
            raise MissingDependency(
                f"This machine shows no folder “{name}”. List it in {VARIABLE} there, or take another "
                "template."
            )
        if writable and not folder.writable:
            raise MissingDependency(
                f"This machine shows “{name}” for reading only. Add “:rw” to it in {VARIABLE} there, or have "
                "the template ask for reading alone."
            )
        found.append(ShownFolder(_source(folder, own), inside(name), writable))
    return tuple(found)


def need_of(word: str) -> str:
    """What a node has to provide for what a template names."""
    return f"{NEED}{word}"


def inside(word: str) -> str:
    """Where a workspace finds what its template names."""
    return f"{INSIDE}/{word.removesuffix(WRITABLE)}"


def _source(folder: ListedFolder, own: Iterable[Path]) -> Path:
    """The folder itself. Raises `MissingDependency` where there is none, or nothing answers; `InvalidSpec`
    where it would show the machine itself or what is Berth's own."""
    look = _looking.get(folder.path)
    if look is None:
        look = _looking[folder.path] = _Look(folder.path)
        look.start()
    look.join(LOOK_S)
    if look.is_alive():
        raise MissingDependency(
            f"The folder {folder.path} ({folder.name} of {VARIABLE}) does not answer. Look at its server."
        )
    _looking.pop(folder.path, None)
    if look.found is None:
        raise MissingDependency(
            f"{VARIABLE} names {folder.name}={folder.path}, which is no folder here. Make it, or take it out."
        )
    for each in own:
        if look.found == each or look.found in each.parents or each in look.found.parents:
            raise InvalidSpec(
                f"{VARIABLE} names {folder.name}={folder.path}, where Berth keeps its own files or homes. "
                "Name a folder beside them."
            )
    return look.found


class _Look(threading.Thread):
    """Looks at a folder; one at a time for each, as it may take for ever."""

    def __init__(self, path: str) -> None:
        super().__init__(name=f"look at {path}", daemon=True)
        self._path = path
        self.found: Path | None = None

    def run(self) -> None:
        path = Path(os.path.realpath(self._path))
        self.found = path if path.is_dir() else None
