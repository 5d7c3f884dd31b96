"""`berth queue` and `berth events`: what waits, and what has happened to a workspace."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_table
from portal.cli.errors import Missing, Unreachable

RETRY_S = 1.0


def queue(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List what waits, in the order in which it is looked at."""
    rows = [row for row in client.queue(team=arguments.team) if row["own"] or not arguments.mine]
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("Nothing waits.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("#", "NAME", "OWNER", "TEAM", "FLAVOR", "EXPECTED", "WAITS FOR")]
    for row in rows:
        place = "-" if row["position"] is None else str(row["position"])
        expected = _time(row["eta"]) if row["eta"] else "-"
        names = [row[key] or "-" for key in ("name", "owner", "team", "flavor")]
        table.append((place, *names, expected, row["message"]))
    return print_table(table)


def events(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print what has happened to a workspace; with -f, go on until it is deleted."""
    workspace = find(client, arguments)
    rows = list(client.event_list(workspace["id"]))[-arguments.tail :]
    if arguments.json and not arguments.follow:
        return print_json(rows)
    for row in rows:
        _print(row, as_json=arguments.json)
    return _follow(client, workspace["id"], rows, as_json=arguments.json) if arguments.follow else 0


def _follow(client: BerthClient, workspace_id: str, rows: list[dict[str, Any]], *, as_json: bool) -> int:
    last = rows[-1]["id"] if rows else 0
    while True:
        try:
            # The state first: what happens after this look is in the stream.
            gone = client.workspace(workspace_id)["state"] == "terminated"
            for row in client.events(workspace_id, after=last):
                last = row["id"]
                _print(row, as_json=as_json)
        except Missing:
            return 0
        except Unreachable as error:
            print(f"{error.message} Trying again …", file=sys.stderr, flush=True)
            time.sleep(RETRY_S)
            continue
        if gone:
            return 0


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(row, ensure_ascii=False), flush=True)
    else:
        print(f"{_time(row['at'])}  {row['actor']} {row['message']}", flush=True)


def _time(stamp: str) -> str:
    """A time in this machine's zone, to the minute."""
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"
