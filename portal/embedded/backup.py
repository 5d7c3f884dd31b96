"""Backs up and restores an instance's database, secrets, keys and authority, but no user files.

SQLite's online backup copies the database while the portal keeps running. A backup is either complete or
absent. A restore moves existing data aside and deletes nothing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from portal.embedded import preflight
from portal.embedded.environment import Instance
from provisioning.service import database_place, instance_lock
from provisioning.service.console import Console, Problem
from provisioning.service.environ import UP
from provisioning.service.files import write_file
from provisioning.version import VERSION

MANIFEST = "backup.json"
DATABASE = database_place.NAME


def back_up(instance: Instance, environ: Mapping[str, str], target: Path, console: Console) -> int:
    """Write a backup to the new folder `target`. Raises `Problem`."""
    _require_sqlite(environ)
    target = target.expanduser().absolute()
    source = database_place.database_file(instance.home)
    if not source.is_file():
        raise Problem(f"No database at {source}.", "Set BERTH_HOME to the folder of the instance.")
    if target.exists():
        raise Problem(f"{target} already exists.", "Choose a new folder.")
    half = target.with_name(f".{target.name}.part")
    with _readable(f"The backup could not be written to {target}"), console.step("Backup") as step:
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(mode=0o700, parents=True)
        step.update("copying the database")
        _copy_database(source, half / DATABASE)
        for name, folder in _folders(instance).items():
            if folder.is_dir():
                shutil.copytree(folder, half / name, symlinks=True)
        manifest = {"version": VERSION, "made_at": _now().isoformat(), "files": _digests(half)}
        write_file(half / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        _sync(half)
        half.rename(target)
        step.result = str(target)
    console.say(
        f"Keep it private: it contains secret keys. Home folders are not included: {instance.homes_dir}."
    )
    return 0


def restore(
    instance: Instance, environ: Mapping[str, str], source: Path, console: Console, *, replace: bool
) -> int:
    """Replace the instance's data with a backup. Raises `Problem` without changing anything."""
    _require_sqlite(environ)
    source = source.expanduser().absolute()
    instance.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with instance_lock.hold(instance.run_dir, refusal=_runs):
        manifest = _read_manifest(source)
        present = [path for path in _replaced_paths(instance) if path.exists()]
        if present and not replace:
            raise Problem(
                f"{instance.home} already contains an instance.",
                "Add --replace to move it aside; nothing is deleted.",
            )
        with (
            _readable(f"The backup could not be restored to {instance.home}"),
            console.step("Restore") as step,
        ):
            _install(instance, source)
            step.result = (
                f"version {manifest['version']}, created {manifest['made_at'][:16].replace('T', ' ')} UTC"
            )
    note = " The previous instance is in the folder replaced-… beside it." if present else ""
    console.say(f"{instance.home} is restored.{note} Start Berth: {UP}")
    return 0


def _install(instance: Instance, source: Path) -> None:
    """Copy everything to the same disk, then rename. After an interruption, run it again."""
    fresh = instance.home / preflight.RESTORING
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh, symlinks=True)
    _sync(fresh)
    replaced = instance.home / f"replaced-{_now():%Y%m%d-%H%M%S-%f}"
    # Pending messages would refer to rows that no longer exist.
    for path in (*_replaced_paths(instance), instance.redis_dir):
        if path.exists():
            replaced.mkdir(mode=0o700, exist_ok=True)
            shutil.move(path, replaced / path.name)
    for name, place in _places(instance).items():
        if (fresh / name).exists():
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(fresh / name, place)
    shutil.rmtree(fresh)


def _folders(instance: Instance) -> dict[str, Path]:
    """Return the folders to back up besides the database, by name in the backup."""
    return {
        "secrets": instance.home / "secrets",
        "keys": instance.home / "keys",
        "authority": instance.tls_dir,
    }


def _places(instance: Instance) -> dict[str, Path]:
    """Return the target path of each part, by name in the backup."""
    return {DATABASE: database_place.database_file(instance.home), **_folders(instance)}


def _replaced_paths(instance: Instance) -> list[Path]:
    """Return the paths that a restore moves aside, including SQLite's files next to the database."""
    return [instance.home / database_place.FOLDER, *_folders(instance).values()]


def _read_manifest(source: Path) -> dict[str, Any]:
    """Return the manifest of a backup. Raises `Problem` if it is damaged or from a later version."""
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_text())
        version, files = str(manifest["version"]), dict(manifest["files"])
        dt.datetime.fromisoformat(manifest["made_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{source} is not a backup of Berth.", f"Its {MANIFEST} cannot be read.") from error
    if _number(version) > _number(VERSION):
        raise Problem(
            f"The backup is from Berth {version}, not {VERSION}.", f"Restore it with Berth {version}."
        )
    with _readable(f"{source} cannot be read"):
        digests = _digests(source)
    wrong = sorted(name for name in files.keys() | digests.keys() if files.get(name) != digests.get(name))
    if wrong:
        raise Problem(f"{source} is damaged: {', '.join(wrong[:5])}.", "Use another backup.")
    return manifest


def _copy_database(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=30)) as live,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        # The copy is a single file, without the portal's write-ahead log.
        copy.execute("PRAGMA journal_mode=DELETE")
        (result,) = copy.execute("PRAGMA integrity_check").fetchone()
    if result != "ok":
        raise Problem(f"The database {source} is damaged: {result}.", "Restore an older backup.")
    target.chmod(0o600)


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file except the manifest, by path."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != MANIFEST:
            with path.open("rb") as stream:
                digests[str(path.relative_to(folder))] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


def _sync(folder: Path) -> None:
    """Flush everything to disk before the renames."""
    for path in (*folder.rglob("*"), folder):
        if path.is_symlink():
            continue
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _require_sqlite(environ: Mapping[str, str]) -> None:
    if not environ.get("DATABASE_URL", "sqlite").startswith("sqlite"):
        raise Problem("The database is a separate server.", "Use pg_dump (docs/backup.md).")


def _runs(_state: dict[str, Any]) -> Problem:
    return Problem("Berth is running here.", "Stop it first: make down, or berth-server down.")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@contextlib.contextmanager
def _readable(message: str) -> Iterator[None]:
    """Convert disk and database errors to a `Problem` with a next action."""
    try:
        yield
    except (OSError, shutil.Error, sqlite3.Error) as error:
        raise Problem(f"{message}: {error}.", "Correct the problem, then run the command again.") from error
