"""What a service without rights sees of the file system, as text for `launcher.py`.

A program may lie anywhere: below `/root`, which nobody else enters, or below a folder that somebody closes
later. So every folder above what it needs that is not the system's own is covered by an empty one in which
only that is in its place, whatever its mode is now (docs/adr/0069-services-account.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM_TREES = tuple(
    Path(name)
    for name in (
        "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/proc",
        "/sbin", "/sys", "/usr",
    )
)  # fmt: skip
"""All in these is the system's, and open to everybody."""
SYSTEM_FOLDERS = frozenset(
    Path(name)
    for name in (
        "/", "/home", "/media", "/mnt", "/nix", "/opt", "/run", "/run/user", "/srv", "/tmp", "/var",  # noqa: S108
        "/var/cache", "/var/lib", "/var/opt", "/var/tmp",  # noqa: S108
    )
)  # fmt: skip
"""These are the system's; what is in them is not."""
MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Needs:
    """What a service needs: folders and files that it reads or writes, and files of which it gets a copy.

    Of `covered` it sees only that. A copy belongs to it and is as old as the service.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    copies: tuple[Path, ...] = ()
    covered: tuple[Path, ...] = ()


def plan(uid: int, needs: Needs, *, groups: Sequence[int] = (), capabilities: Sequence[int] = ()) -> str:
    """For the launcher: become `uid`, of `groups` besides its own, and see this; keep these capabilities."""
    links: dict[Path, str] = {}

    def real(paths: Iterable[Path]) -> list[Path]:
        return [_real(path, links) for path in paths]

    copies, covers = real(needs.copies), set(real(needs.covered))

    def apart(paths: Iterable[Path]) -> list[Path]:
        """Those that are not in their place anyway."""
        return [
            path
            for path in real(paths)
            if not _system(path) or any(path.is_relative_to(cover) for cover in covers)
        ]

    reads, writes = apart(needs.reads), apart(needs.writes)
    for path in (*reads, *writes, *copies, *links):
        above = topmost(path)
        if above is not None:
            covers.add(above)
    # A folder that is shown as a whole hides nothing.
    covers.difference_update(reads, writes)
    covers = {cover for cover in covers if not _covered(cover, covers, reads)}
    binds = dict.fromkeys(_outermost(reads, covers), False) | dict.fromkeys(writes, True)
    return json.dumps(
        {
            "uid": uid,
            "groups": list(groups),
            "capabilities": list(capabilities),
            "covers": sorted(map(str, covers)),
            "binds": [[str(path), writable] for path, writable in sorted(binds.items())],
            "copies": sorted({str(path) for path in copies}),
            "links": [[str(place), target] for place, target in sorted(links.items())],
        }
    )


def topmost(path: Path) -> Path | None:
    """The outermost folder above `path` that is not the system's; None where all above is."""
    if _system(path):
        return None
    above = [folder for folder in reversed(path.parents) if folder not in SYSTEM_FOLDERS]
    return above[0] if above else None


def _system(path: Path) -> bool:
    return any(path.is_relative_to(tree) for tree in SYSTEM_TREES)


def _covered(path: Path, covers: set[Path], shown: Iterable[Path]) -> bool:
    """Whether `path` cannot be seen through a cover above it."""
    above = [cover for cover in covers if cover != path and path.is_relative_to(cover)]
    return any(
        not any(path.is_relative_to(other) and other.is_relative_to(cover) for other in shown)
        for cover in above
    )


def _outermost(paths: Iterable[Path], covers: set[Path]) -> list[Path]:
    """Without those that another one shows already."""
    found: list[Path] = []
    for path in sorted(set(paths)):
        shown = any(
            path.is_relative_to(other)
            and not any(path.is_relative_to(cover) and cover.is_relative_to(other) for cover in covers)
            for other in found
        )
        if not shown:
            found.append(path)
    return found


def _real(path: Path, links: dict[Path, str]) -> Path:
    """Where `path` leads; the links on the way are added to `links`. Raises `OSError` if they never end."""
    path = Path(os.path.normpath(Path.cwd() / path))
    for _ in range(MOST_LINKS):
        link = next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
        if link is None:
            return path
        target = str(link.readlink())
        if not _system(link):
            links[link] = target
        path = Path(os.path.normpath(link.parent / target / path.relative_to(link)))
    raise OSError(f"{path} is behind too many links")
