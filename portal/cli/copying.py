"""`berth cp`: copies files and, with -r, folders between this machine and a workspace's home, running or not.

Conflicts in folders are detected before anything is copied. Symbolic links and special files are skipped in
both directions and reported; no link is followed or created.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import stat
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote_to_bytes

from portal.cli import files
from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_line
from portal.cli.errors import CliError, Missing, RequestRejected, Unreachable, UsageError
from portal.cli.files import PIECE, encode_name, home_path, send
from portal.cli.terminal import Progress

MAX_NAMED = 10
"""Maximum number of skipped paths to name."""
LEFT_OUT = "BERTH.left_out"
"""Header of a tar's last entry in which a node lists unreadable paths (`packing.py`)."""
FOLDER = "folder"
NOT_A_FOLDER = "not_a_folder"
EXISTS = "file_exists"


@dataclass
class _Plan:
    """Files and folders to send, with their target paths, in order of creation."""

    folders: list[str] = field(default_factory=list)
    files: list[tuple[Path, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def cp(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Copy between this machine and a workspace, written NAME:PATH as in scp."""
    *sources, target = arguments.paths
    if not sources:
        raise UsageError("Source or target is missing.", "For example: berth cp data.csv NAME:data/")
    if arguments.recursive and arguments.form:
        raise UsageError("-r and --as cannot be combined.", "-r copies a folder, --as downloads one file.")
    workspace_name, target_path = _side(target)
    if workspace_name:
        if any(_side(source)[0] for source in sources):
            raise UsageError("Both sides are in workspaces.", "Copy to this machine first.")
        arguments.workspace = workspace_name
        if arguments.recursive:
            return _put(client, arguments, sources, home_path(target_path))
        arguments.files, arguments.into = sources, target_path
        return files.put(client, arguments)
    if len(sources) > 1:
        raise UsageError("--as downloads one path at a time.", "Run the command once for each path.")
    arguments.workspace, arguments.path = _side(sources[0])
    if not arguments.workspace:
        raise UsageError("Neither side is in a workspace.", "Write the workspace's side as NAME:PATH.")
    arguments.to = target
    if arguments.recursive:
        return _get(client, arguments, home_path(arguments.path), Path(target))
    return files.get(client, arguments)


def _side(text: str) -> tuple[str, str]:
    """Split into workspace and path in its home; the name is empty for a local path such as `./a:b`."""
    name, colon, path = text.partition(":")
    return (name, path) if colon and name and "/" not in name else ("", text)


# -- from here to a workspace --------------------------------------------------------------------


def _put(client: BerthClient, arguments: argparse.Namespace, sources: list[str], target: str) -> int:
    workspace = find(client, arguments)
    remote = _RemoteFolders(client, workspace["id"])
    plan = _make_plan(sources, target, is_folder=_is_folder(remote, target))
    new = _folders_to_create(plan, remote, force=arguments.force)
    sent = size = 0
    try:
        for path in new:
            _make(client, workspace["id"], path)
        with Progress(sys.stderr, os.environ) as progress:
            for source, path in plan.files:
                if sys.stderr.isatty():
                    progress.show(f"{sent + 1} of {len(plan.files)}: {source}")
                size += send(client, workspace["id"], source, path, replace=arguments.force)
                sent += 1
    except (CliError, OSError) as error:
        raise _with_progress(error, sent, len(plan.files)) from error
    _note(plan.left_out)
    counts = {"files": sent, "size_bytes": size, "left_out": plan.left_out}
    if arguments.json:
        return print_json({"from": sources, "to": target, **counts})
    where = f"{arguments.workspace}:{target}:" if target else f"{arguments.workspace}:"
    return print_line(f"{where} {_counted(sent, size)}")


def _make_plan(sources: list[str], target: str, *, is_folder: bool) -> _Plan:
    """Collect everything below the sources. Raises `UsageError` for unreadable ones."""
    if len(sources) > 1 and not is_folder:
        raise UsageError(f"Folder {target} not found.", "To copy several paths, choose an existing folder.")
    plan = _Plan()
    for name in sources:
        last = os.path.basename(name.rstrip("/"))  # noqa: PTH119 - Path drops the dot of `data/.`
        contents = last in ("", ".", "..")
        at = _join_path(target, last) if is_folder and not contents else target
        # Follow a link that is itself a source, but no link inside a source.
        source = Path(name)
        try:
            if not source.is_dir():
                source.stat()
                plan.files.append((source, _join_path(target, last) if is_folder else at))
                continue
            if at and not (contents and is_folder):
                plan.folders.append(at)
            _walk(source, at, plan)
        except OSError as error:
            path = error.filename or name
            raise UsageError(f"{path} cannot be read: {error.strerror}.", "Nothing was sent.") from error
    for source, _ in plan.files:
        if not os.access(source, os.R_OK):
            raise UsageError(f"{source} cannot be read.", "Nothing was sent.")
    return plan


def _walk(folder: Path, at: str, plan: _Plan) -> None:
    with os.scandir(folder) as entries:
        items = sorted(entries, key=lambda entry: entry.name)
    for entry in items:
        path = _join_path(at, entry.name)
        if entry.is_dir(follow_symlinks=False):
            plan.folders.append(path)
            _walk(Path(entry.path), path, plan)
        elif entry.is_file(follow_symlinks=False):
            plan.files.append((Path(entry.path), path))
        else:
            plan.left_out.append(entry.path)


class _RemoteFolders:
    """Contents of folders in the home; each folder is requested once."""

    def __init__(self, client: BerthClient, workspace_id: str) -> None:
        self._client, self._id = client, workspace_id
        self._seen: dict[str, dict[str, str] | None] = {}

    def names(self, folder: str) -> dict[str, str] | None:
        """Return the paths in a folder with their kinds; None if the folder does not exist."""
        if folder not in self._seen:
            try:
                rows = list(self._client.files.list(self._id, folder))
                self._seen[folder] = {row["path"]: row["kind"] for row in rows}
            except Missing:
                self._seen[folder] = None
        return self._seen[folder]

    def kind(self, path: str) -> str | None:
        """Return the kind of the entry at a path; None if it or its folder does not exist."""
        if not path:
            return FOLDER
        return (self.names(path.rpartition("/")[0]) or {}).get(path)


def _is_folder(remote: _RemoteFolders, path: str) -> bool:
    """Return whether the target is a folder. Raises `Missing` if its parent folder does not exist."""
    kind = remote.kind(path)
    parent = path.rpartition("/")[0]
    if kind is None and remote.names(parent) is None:
        raise Missing(f"Folder {parent} not found.", "Create it, or choose another one.")
    return kind == FOLDER


def _folders_to_create(plan: _Plan, remote: _RemoteFolders, *, force: bool) -> list[str]:
    """Return the folders to create. Raises `UsageError` for conflicting entries."""
    new: list[str] = []
    created: set[str] = set()
    for path in plan.folders:
        kind = None if path.rpartition("/")[0] in created else remote.kind(path)
        if kind is None:
            new.append(path)
            created.add(path)
        elif kind != FOLDER:
            raise UsageError(
                f"{path} already exists and is not a folder.", "Choose another name, or delete it."
            )
        elif not force:
            raise _exists_error(path)
    for _, path in plan.files:
        kind = None if path.rpartition("/")[0] in created else remote.kind(path)
        if kind == FOLDER:
            raise UsageError(f"{path} already exists and is a folder.", "Choose another name, or delete it.")
        if kind is not None and not force:
            raise _exists_error(path)
    return new


def _exists_error(path: str) -> UsageError:
    return UsageError(f"{path} already exists.", "Nothing was copied. Add --force to replace files in it.")


def _make(client: BerthClient, workspace_id: str, path: str) -> None:
    try:
        client.files.create_folder(workspace_id, path)
    except RequestRejected as refused:
        # Created by someone else meanwhile. If it is not a folder, the first upload fails.
        if refused.code != EXISTS:
            raise


def _with_progress(error: CliError | OSError, sent: int, total: int) -> CliError:
    """Return the error with the number of files sent so far."""
    progress = f"{sent} of {total} files were uploaded and are kept."
    if isinstance(error, CliError):
        error.message = f"{error.message} {progress}"
        error.args = (error.message,)
        error.next_action = error.next_action or "Copy again with --force."
        return error
    return CliError(
        f"{error.filename} cannot be read: {error.strerror}. {progress}", "Copy again with --force."
    )


# -- from a workspace to here --------------------------------------------------------------------


def _get(client: BerthClient, arguments: argparse.Namespace, path: str, to: Path) -> int:
    if not hasattr(tarfile, "data_filter"):
        raise CliError("This Python cannot unpack archives safely.", "Use Python 3.11.4 or later.")
    workspace = find(client, arguments)
    try:
        url = client.files.download_url(workspace["id"], path=path, form="tar")
    except RequestRejected as refused:
        if refused.code != NOT_A_FOLDER:
            raise
        return files.get(client, arguments)
    if to.is_dir():
        to = to / (_plain(path) or "home")
    mode = _lstat(to)
    if mode is not None and not stat.S_ISDIR(mode):
        raise UsageError(f"{to} already exists and is not a folder.", "Choose another name, or delete it.")
    if mode is not None and not arguments.force:
        raise UsageError(
            f"{to} already exists.", "Choose another folder, or add --force to replace files in it."
        )
    half = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        half.mkdir()
        download = _fetch(client, url, half)
        if mode is None:
            half.rename(to)
        else:
            _require_room(half, to)
            _merge(half, to)
    except OSError as error:
        raise CliError(f"{error.filename or to} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
    if download.unread:
        raise CliError(
            f"{to} is incomplete. Not readable in the workspace: {_name_list(download.unread)}",
            "Make it readable in the workspace, then copy again with --force.",
        )
    _note(download.left_out)
    counts = {"files": download.files, "size_bytes": download.size, "left_out": download.left_out}
    if arguments.json:
        return print_json({"from": path, "to": str(to), **counts})
    return print_line(f"{to}: {_counted(download.files, download.size)}")


@dataclass
class _Download:
    files: int = 0
    size: int = 0
    left_out: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def _fetch(client: BerthClient, url: str, folder: Path) -> _Download:
    """Unpack the node's archive into a private folder. Either completes or raises an error."""
    download = _Download()
    with client.files.transfer("GET", url) as answer:
        pieces = answer.iter_bytes(PIECE)
        try:
            with tarfile.open(fileobj=_Stream(pieces), mode="r|", errorlevel=1) as archive:  # type: ignore[call-overload]
                for entry in archive:
                    _unpack(archive, entry, folder, download)
        except tarfile.FilterError as error:
            raise CliError("The node sent a path outside the target.", "Contact an operator.") from error
        except tarfile.TarError as error:
            raise Unreachable("The download is incomplete.", "Copy again.") from error
        for _ in pieces:
            pass  # also detects a stream truncated after the archive
    return download


def _unpack(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path, download: _Download) -> None:
    download.unread += filter(None, entry.pax_headers.get(LEFT_OUT, "").split("\n"))
    # Names begin with the source folder's name, which differs from the target's.
    name = entry.name.partition("/")[2]
    if not name:
        return
    if entry.isdir() or entry.isreg():
        # The filter rejects names outside the folder and removes unsafe permissions.
        archive.extract(entry.replace(name=name, deep=False), folder, filter="data")
        download.files += entry.isreg()
        download.size += entry.size
    else:
        download.left_out.append(name)


class _Stream:
    """File-like reader of an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read(self, count: int) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        data, self._rest = self._rest[:count], self._rest[count:]
        return data


def _require_room(source: Path, target: Path) -> None:
    """Raise `UsageError` if a file would replace a folder, or a folder a file."""
    with os.scandir(source) as entries:
        items = list(entries)
    for entry in items:
        at, folder = target / entry.name, entry.is_dir(follow_symlinks=False)
        mode = _lstat(at)
        if mode is None:
            continue
        if folder != stat.S_ISDIR(mode):
            kind = "not a folder" if folder else "a folder"
            raise UsageError(f"{at} already exists and is {kind}.", "Nothing was copied. Delete it first.")
        if folder:
            _require_room(Path(entry.path), at)


def _merge(source: Path, target: Path) -> None:
    """Move everything into existing folders; each file is replaced atomically."""
    with os.scandir(source) as entries:
        items = list(entries)
    for entry in items:
        at = target / entry.name
        if entry.is_dir(follow_symlinks=False) and _lstat(at) is not None:
            _merge(Path(entry.path), at)
        else:
            Path(entry.path).replace(at)


def _lstat(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_mode
    return None


# -- both ----------------------------------------------------------------------------------------


def _join_path(folder: str, name: str) -> str:
    return f"{folder}/{encode_name(name)}" if folder else encode_name(name)


def _plain(path: str) -> str:
    """Return the last name of a path in the home, decoded."""
    return os.fsdecode(unquote_to_bytes(path.rpartition("/")[2]))


def _counted(files: int, size: int) -> str:
    return f"{files} {'file' if files == 1 else 'files'}, {size} bytes"


def _note(left_out: list[str]) -> None:
    if left_out:
        print(f"Skipped links and special files: {_name_list(left_out)}", file=sys.stderr)


def _name_list(paths: list[str]) -> str:
    unnamed = len(paths) - MAX_NAMED
    return ", ".join(paths[:MAX_NAMED]) + (f" and {unnamed} more" if unnamed > 0 else "") + "."
