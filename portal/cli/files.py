"""`berth files …`: files of a workspace's home, whether it is running or not."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_line, print_table
from portal.cli.errors import CliError, UsageError

PIECE = 1 << 20


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List a folder."""
    workspace = find(client, arguments)
    rows = list(client.files.list(workspace["id"], home_path(arguments.path)))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("KIND", "SIZE", "CHANGED", "NAME")]
    for row in rows:
        size = str(row["size_bytes"]) if row["kind"] == "file" else "-"
        table.append((row["kind"], size, (row["changed_at"] or "-")[:19], row["name"]))
    return print_table(table) if rows else 0


def get(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Download a file, or a folder as tar or zip."""
    workspace, path = find(client, arguments), home_path(arguments.path)
    form = arguments.form or "file"
    ending = "" if form == "file" else f".{form}"
    to = Path(arguments.to or f"{path.rpartition('/')[2] or 'home'}{ending}")
    if to.is_dir():
        to = to / f"{path.rpartition('/')[2] or 'home'}{ending}"
    if to.exists() and not arguments.force:
        raise UsageError(f"{to} already exists.", "Choose another name with --to, or add --force.")
    url = client.files.download_url(workspace["id"], path=path, form=form)
    # Renamed once the download is complete.
    half = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        with client.files.transfer("GET", url) as answer, half.open("xb") as file:
            for piece in answer.iter_bytes(PIECE):
                file.write(piece)
        half.replace(to)
    except OSError as error:
        raise CliError(f"{to} cannot be written: {error.strerror}.") from error
    finally:
        with contextlib.suppress(OSError):
            half.unlink()
    result: dict[str, Any] = {"path": path, "to": str(to), "size_bytes": to.stat().st_size}
    return print_json(result) if arguments.json else print_line(f"{to}: {result['size_bytes']} bytes")


def put(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Upload files to a folder."""
    workspace, folder = find(client, arguments), home_path(arguments.into)
    sent = []
    for name in arguments.files:
        source = Path(name)
        path = "/".join(filter(None, (folder, encode_name(source.name))))
        try:
            size = send(client, workspace["id"], source, path, replace=arguments.force)
        except IsADirectoryError as error:
            raise UsageError(f"{name} is a folder.", "Copy it with `berth cp -r`.") from error
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror}.") from error
        sent.append({"path": path, "size_bytes": size})
        if not arguments.json:
            print_line(f"{path}: {size} bytes")
    return print_json(sent) if arguments.json else 0


def send(client: BerthClient, workspace_id: str, source: Path, path: str, *, replace: bool) -> int:
    """Upload one file; return its size in bytes. Raises `OSError` if it cannot be read."""
    with source.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        url = client.files.upload_url(workspace_id, path=path, replace=replace)
        headers = {"Content-Length": str(size)}
        with client.files.transfer("PUT", url, content=_pieces(file, size), headers=headers):
            return size


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Delete files and folders."""
    workspace, paths = find(client, arguments), [home_path(path) for path in arguments.paths]
    if "" in paths:
        raise UsageError("The home folder itself cannot be deleted.", "Choose files or folders in it.")
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError("No terminal to ask for confirmation.", "Add --yes to confirm.")
        print(f"Permanently delete {', '.join(paths)}?", end=" [y/N] ", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CliError("Nothing deleted.")
    client.files.delete(workspace["id"], paths)
    return print_json({"deleted": paths}) if arguments.json else 0


def home_path(text: str) -> str:
    """Normalize a path of the home as entered by users: `~/data/`, `./data`."""
    path = text.removeprefix("~/").removeprefix("./")
    return "" if path in ("~", ".") else path.strip("/")


def encode_name(name: str) -> str:
    """Return a name in wire form: `%` and unprintable characters are percent-encoded."""
    return "".join(
        character
        if character.isprintable() and character != "%"
        else "".join(f"%{byte:02X}" for byte in os.fsencode(character))
        for character in name
    )


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    """Yield exactly `size` bytes. Bytes appended to the file meanwhile are not sent."""
    while size > 0 and (data := file.read(min(PIECE, size))):
        size -= len(data)
        yield data
