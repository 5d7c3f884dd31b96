"""`berth files archives …`: archives of the home used by a workspace."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_line, print_table
from portal.cli.errors import CliError, Missing, TimedOut, Unreachable, UsageError
from portal.cli.users import confirm

POLL_INTERVAL_S = 2.0
MIB = 1 << 20
UNDER_WAY = ("making", "checking", "restoring")
Archive = dict[str, Any]


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List archives, newest first."""
    rows = client.archives.list(find(client, arguments)["id"])
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("NAME", "STATE", "MADE", "MIB", "MACHINE", "ID")]
    for row in rows:
        made_at = (row["made_at"] or "-")[:19]
        size = str(-(-row["size_bytes"] // MIB)) if row["made_at"] else "-"
        table.append((row["name"], row["state"], made_at, size, row["node"], row["id"]))
    return print_table(table) if rows else 0


def make(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create an archive. With --wait, wait for it; exit code 1 if it fails."""
    workspace_id = find(client, arguments)["id"]
    archive = client.archives.create(workspace_id, name=arguments.name)
    if arguments.wait:
        archive = _wait_for(client, arguments, workspace_id, archive)
        if archive["state"] != "ready":
            raise CliError(f"“{archive['name']}” was not created{_reason_suffix(archive)}")
    return print_json(archive) if arguments.json else print_line(_state_text(archive))


def restore(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Restore the home from an archive after confirmation. With --wait, exit code 1 if it fails."""
    workspace_id = find(client, arguments)["id"]
    archive = _find_archive(client, workspace_id, arguments.archive)
    confirm(arguments, f"Permanently replace your home folder with “{archive['name']}”?")
    archive = client.archives.restore(workspace_id, archive["id"])
    if arguments.wait:
        archive = _wait_for(client, arguments, workspace_id, archive)
        if not archive["restored_at"]:
            raise CliError(
                f"Your home folder is unchanged{_reason_suffix(archive)}",
                "Run `berth files archives restore` again.",
            )
    return print_json(archive) if arguments.json else print_line(_state_text(archive))


def cancel(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Cancel the current operation on an archive."""
    workspace_id = find(client, arguments)["id"]
    archive = _find_archive(client, workspace_id, arguments.archive)
    client.archives.cancel(workspace_id, archive["id"])
    return print_json({"cancelled": archive["id"]}) if arguments.json else 0


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Delete an archive after confirmation. With --wait, wait until it is gone."""
    workspace_id = find(client, arguments)["id"]
    archive = _find_archive(client, workspace_id, arguments.archive)
    confirm(arguments, f"Permanently delete the archive “{archive['name']}”?")
    client.archives.delete(workspace_id, archive["id"])
    if arguments.wait:
        with contextlib.suppress(Missing):  # the archive is gone
            _wait_for(client, arguments, workspace_id, {**archive, "state": "deleting"})
    return print_json({"deleted": archive["id"]}) if arguments.json else 0


def _find_archive(client: BerthClient, workspace_id: str, reference: str) -> Archive:
    """Return the archive with this id or name.

    Raises `Missing`, and `UsageError` if the name is ambiguous.
    """
    rows = client.archives.list(workspace_id)
    matches = [row for row in rows if row["id"] == reference] or [
        row for row in rows if row["name"] == reference
    ]
    if not matches:
        raise Missing(
            f"This home folder has no archive “{reference}”.",
            "`berth files archives ls` lists its archives.",
        )
    if len(matches) > 1:
        ids = ", ".join(row["id"] for row in matches)
        raise UsageError(f"Several archives are named “{reference}”.", f"Choose one by id: {ids}.")
    return matches[0]


def _wait_for(
    client: BerthClient, arguments: argparse.Namespace, workspace_id: str, archive: Archive
) -> Archive:
    """Return the archive after its operation has ended.

    Raises `TimedOut`, and `Missing` once the archive is deleted.
    """
    ends_at = time.monotonic() + arguments.timeout
    last_line = ""
    while archive["state"] in (*UNDER_WAY, "deleting"):
        line = _state_text(archive)
        if line != last_line and not arguments.json:
            print(line, file=sys.stderr, flush=True)
        last_line = line
        if time.monotonic() > ends_at:
            raise TimedOut(
                f"“{archive['name']}” was not finished after {arguments.timeout} s. It continues.",
                "`berth files archives ls` shows its progress.",
            )
        time.sleep(POLL_INTERVAL_S)
        try:
            archive = client.archives.get(workspace_id, archive["id"])
        except Unreachable:
            # The portal may be restarting; the node continues.
            if time.monotonic() > ends_at:
                raise
    return archive


def _state_text(archive: Archive) -> str:
    """Return the state or progress of an archive."""
    done = f", {archive['bytes_done'] // MIB} MiB" if archive["state"] in UNDER_WAY else ""
    return f"{archive['name']} is {archive['state']}{done} on {archive['node']}{_reason_suffix(archive)}"


def _reason_suffix(archive: Archive) -> str:
    return f": {archive['message']}" if archive["message"] else ""
