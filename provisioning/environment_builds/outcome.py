"""Reads and secures installed files outside the sandbox; code of packages may have manipulated them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from provisioning.environment_builds import pythons
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import MAX_LOCK, BuildFailure


class BuildContents(msgspec.Struct, frozen=True):
    """Result of `finishing.py`. Code of packages may have manipulated it."""

    packages: list[tuple[str, str, int]]
    programs: list[str]


class Preload(msgspec.Struct, frozen=True):
    """Result of `preload_check.py`, from a process of the environment itself."""

    possible: bool
    modules: list[Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z][\w.]*$")]]


def secure(environment: Path, python: pythons.Python) -> None:
    """Reset modes, `pyvenv.cfg` and Python links, which are used outside sandboxes and may be manipulated.

    Raises `BuildError` for a special file, or a link in place of a folder.
    """
    for folder in (environment, environment / "bin", environment / "lib"):
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise tampered_error(folder.name)
    for path, facts in _walk(environment):
        if stat.S_ISLNK(facts.st_mode):
            continue
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise tampered_error(path.name)
        mode = stat.S_IMODE(facts.st_mode)
        target_mode = mode & 0o755 | (0o755 if stat.S_ISDIR(facts.st_mode) else 0o444)
        if mode != target_mode:
            path.chmod(target_mode)
    config = environment / "pyvenv.cfg"
    config.unlink(missing_ok=True)
    with config.open("x") as file:
        file.write(
            f"home = {Path(python.executable).parent}\nimplementation = CPython\n"
            f"version_info = {python.version}\ninclude-system-site-packages = false\n"
        )
    links = {"python": python.executable, "python3": "python", f"python{python.minor}": "python"}
    for name, target in links.items():
        link = environment / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything below a folder without following links. A folder is yielded before it is entered."""
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        facts = entry.stat(follow_symlinks=False)
        path = Path(entry.path)
        yield path, facts
        if stat.S_ISDIR(facts.st_mode):
            yield from _walk(path)


def read_contents(text: str) -> BuildContents:
    try:
        contents = msgspec.json.decode(text, type=BuildContents)
    except msgspec.MsgspecError as error:
        raise tampered_error("package list") from error
    return BuildContents(
        [(name[:200], version[:100], max(0, size)) for name, version, size in contents.packages[:5000]],
        [name for name in contents.programs[:1024] if 0 < len(name) <= 200],
    )


def read_preload(text: str) -> Preload:
    """Parse the result; if it is invalid, nothing can be preloaded."""
    try:
        return msgspec.json.decode(text, type=Preload)
    except msgspec.MsgspecError:
        return Preload(False, [])


def tampered_error(subject: str) -> BuildError:
    return BuildError(
        BuildFailure.BUILD_FAILED,
        f"A package damaged the environment (invalid {subject}). Remove that package.",
    )


def read_text(path: Path, subject: str) -> str:
    """Read a step's output file, which code of a package may have replaced. Raises `BuildError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_LOCK + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise tampered_error(subject) from error
