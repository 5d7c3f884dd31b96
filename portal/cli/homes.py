"""`berth homes …`: unused and archived homes. Operators also move all homes of a node to another."""

from __future__ import annotations

import argparse
import time
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line
from portal.cli.errors import CliError, Missing, UsageError
from portal.cli.users import confirm

POLL_S = 2.0


def move(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Show the homes of a node, confirm, move them and wait; exit code 1 if some stayed.

    The command continues a running move, and retries homes that stayed in an earlier one.
    """
    node = _node(client, arguments)
    report = client.nodes.homes(node["id"])
    if arguments.dry_run:
        return print_json(report) if arguments.json else print_line(_summary(report))
    if not arguments.to:
        targets = ", ".join(report["targets"]) or "none is available now"
        raise UsageError("Choose a target machine.", f"Add --to with one of: {targets}.")
    evacuation = next(
        iter(client.home_evacuations.list(from_node=node["name"], pool=node["pool"], state="going")), None
    )
    if evacuation is None or evacuation["to_node"] != arguments.to:
        confirm(arguments, f"{_summary(report)}\nMove them to {arguments.to}?")
        evacuation = client.nodes.move_homes(node["id"], to=arguments.to)
    if arguments.no_wait:
        return print_json(evacuation) if arguments.json else print_line(_progress(evacuation))
    ended = _wait_for_move(client, evacuation, quiet=arguments.json)
    if arguments.json:
        print_json(ended)
    return 0 if ended["state"] == "done" else 1


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print one line per home. With --json, print the REST objects."""
    filters = {"archived": "true"} if arguments.archived else {}
    if not arguments.all:
        filters["owner"] = client.users.me()["username"]
    rows = list(client.homes.list(**filters))
    if arguments.json:
        return print_json(rows)
    for row in rows:
        print_line(_line(row))
    return 0


def keep(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Mark a home as still needed."""
    home = client.homes.keep(_find_home(client, arguments)["id"])
    return print_json(home) if arguments.json else print_line(_line(home))


def restore(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Restore a home and wait; exit code 1 on failure."""
    row = _find_home(client, arguments)
    if row["archive"] is None:
        raise Missing("This home folder is not archived.", "Start a workspace to use it.")
    row = client.homes.restore(row["id"])
    if not arguments.no_wait:
        while row["archive"] is not None and row["archive"]["state"] == "restoring":
            time.sleep(POLL_S)
            row = client.homes.get(row["id"])
    if arguments.json:
        print_json(row)
    else:
        print_line(_line(row))
    return 0 if arguments.no_wait or row["archive"] is None else 1


def _find_home(client: BerthClient, arguments: argparse.Namespace) -> dict[str, Any]:
    owner = arguments.owner or client.users.me()["username"]
    rows = list(client.homes.list(team=arguments.team, owner=owner, pool=arguments.pool))
    if not rows:
        raise Missing(f"No home folder in “{arguments.team}”.", "`berth homes ls` lists yours.")
    if len(rows) > 1:
        pools = ", ".join(row["pool"] for row in rows)
        raise UsageError(f"Several pools have a home folder of “{arguments.team}”.", f"Add --pool: {pools}.")
    return rows[0]


def _line(row: dict[str, Any]) -> str:
    """Return a home as one line."""
    archive = row["archive"]
    days = None if row["unused_s"] is None else row["unused_s"] // 86_400
    state = "in use or not limited"
    if archive is not None and archive["state"] == "restoring":
        state = f"being restored, {archive['bytes_done'] >> 20} of {archive['stream_bytes'] >> 20} MiB"
    elif archive is not None and archive["away_at"] is not None:
        state = f"archived, {archive['size_bytes'] >> 20} MiB, for {days} days"
        state += ", may be deleted" if row["deletable"] else ""
    elif archive is not None:
        state = "being archived"
    elif days is not None and row["limit_s"]:
        state = f"unused for {days} of {row['limit_s'] // 86_400} days"
        state += f"; will be archived on {row['due_at'][:10]}" if row["warned"] else ""
    return f"{row['team']}/{row['owner']}  {row['pool']}  {row['node']}  {state}"


def _node(client: BerthClient, arguments: argparse.Namespace) -> dict[str, Any]:
    rows = list(client.nodes.list(name=arguments.node, pool=arguments.pool))
    if not rows:
        raise Missing(f"No node “{arguments.node}”.", "The pool's page lists its nodes.")
    if len(rows) > 1:
        pools = ", ".join(row["pool"] for row in rows)
        raise UsageError(
            f"Several pools have a node “{arguments.node}”.", f"Add --pool with one of: {pools}."
        )
    return rows[0]


def _wait_for_move(client: BerthClient, evacuation: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Wait until the move has ended, printing changes. An interruption does not stop the move."""
    last_line = ""
    while True:
        line = _progress(evacuation)
        if line != last_line and not quiet:
            print(line, flush=True)
        last_line = line
        if evacuation["state"] != "going":
            return evacuation
        time.sleep(POLL_S)
        try:
            evacuation = client.home_evacuations.get(evacuation["id"])
        except KeyboardInterrupt:  # pragma: no cover
            raise CliError("The move continues.", "Repeat the command to see its progress.") from None


def _summary(report: dict[str, Any]) -> str:
    """Summarize the homes on a node."""
    count = report["homes"]
    parts = [
        f"{count} home folder{'' if count == 1 else 's'} on {report['node']}, "
        f"{report['used_mib']} MiB measured"
    ]
    for key, label in (
        ("in_use", "in use: moved once their workspaces have stopped"),
        ("moving", "already being moved or archived"),
        ("kept", "of deleted accounts: not moved"),
    ):
        if report[key]:
            parts.append(f"{report[key]} {label}")
    if report["reason"]:
        parts.append(report["message"].rstrip("."))
    return "; ".join(parts) + "."


def _progress(row: dict[str, Any]) -> str:
    suffix = f", {row['stayed']} not moved" if row["stayed"] else ""
    suffix += f", {row['left']} remaining" if row["state"] == "going" else f": {row['state']}"
    why = f" ({row['message']})" if row["message"] else ""
    return f"{row['moved']} moved from {row['from_node']} to {row['to_node']}{suffix}{why}"
