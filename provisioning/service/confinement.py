"""File-system view of an unprivileged service, as text for `launcher.py`.

A program can be anywhere: below `/root`, which other users cannot enter, or below a folder that is closed
later. Therefore the topmost folder above its files that is not the system's is covered by an empty folder, in
which only those files are mounted, regardless of its mode (docs/adr/0069-services-account.md).
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
"""Everything in these belongs to the system and is readable by all."""
SYSTEM_FOLDERS = frozenset(
    Path(name)
    for name in (
        "/", "/home", "/media", "/mnt", "/nix", "/opt", "/run", "/run/user", "/srv", "/tmp", "/var",  # noqa: S108
        "/var/cache", "/var/lib", "/var/opt", "/var/tmp",  # noqa: S108
    )
)  # fmt: skip
"""These belong to the system; their contents do not."""
MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class ServiceNeeds:
    """Needs of a service: paths that it reads or writes, and files that it gets copies of.

    In `covered` folders it sees only those. A copy belongs to the service and is made at its start.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    copies: tuple[Path, ...] = ()
    covered: tuple[Path, ...] = ()


def plan(
    uid: int, needs: ServiceNeeds, *, groups: Sequence[int] = (), capabilities: Sequence[int] = ()
) -> str:
    """Return the launcher's plan: switch to `uid` and `groups`, with this view and these capabilities."""
    links: dict[Path, str] = {}

    def real(paths: Iterable[Path]) -> list[Path]:
        return [_resolve(path, links) for path in paths]

    copies, covers = real(needs.copies), set(real(needs.covered))

    def apart(paths: Iterable[Path]) -> list[Path]:
        """Return the paths that are not visible in place anyway."""
        return [
            path
            for path in real(paths)
            if not _is_system_path(path) or any(path.is_relative_to(cover) for cover in covers)
        ]

    reads, writes = apart(needs.reads), apart(needs.writes)
    for path in (*reads, *writes, *copies, *links):
        above = topmost(path)
        if above is not None:
            covers.add(above)
    # A folder mounted as a whole hides nothing.
    covers.difference_update(reads, writes)
    covers = {cover for cover in covers if not _is_covered(cover, covers, reads)}
    binds = dict.fromkeys(_outermost_paths(reads, covers), False) | dict.fromkeys(writes, True)
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
    """Return the topmost folder above `path` that is not the system's, or None."""
    if _is_system_path(path):
        return None
    above = [folder for folder in reversed(path.parents) if folder not in SYSTEM_FOLDERS]
    return above[0] if above else None


def _is_system_path(path: Path) -> bool:
    return any(path.is_relative_to(tree) for tree in SYSTEM_TREES)


def _is_covered(path: Path, covers: set[Path], shown: Iterable[Path]) -> bool:
    """Return whether `path` is hidden by a cover above it."""
    above = [cover for cover in covers if cover != path and path.is_relative_to(cover)]
    return any(
        not any(path.is_relative_to(parent) and parent.is_relative_to(cover) for parent in shown)
        for cover in above
    )


def _outermost_paths(paths: Iterable[Path], covers: set[Path]) -> list[Path]:
    """Return the paths without those inside another one."""
    outermost: list[Path] = []
    for path in sorted(set(paths)):
        shown = any(
            path.is_relative_to(outer)
            and not any(path.is_relative_to(cover) and cover.is_relative_to(outer) for cover in covers)
            for outer in outermost
        )
        if not shown:
            outermost.append(path)
    return outermost


def _resolve(path: Path, links: dict[Path, str]) -> Path:
    """Resolve `path` and add the links on the way to `links`. Raises `OSError` for a loop."""
    path = Path(os.path.normpath(Path.cwd() / path))
    for _ in range(MAX_LINKS):
        link = next((parent for parent in (*reversed(path.parents), path) if parent.is_symlink()), None)
        if link is None:
            return path
        target = str(link.readlink())
        if not _is_system_path(link):
            links[link] = target
        path = Path(os.path.normpath(link.parent / target / path.relative_to(link)))
    raise OSError(f"too many symbolic links in {path}")
