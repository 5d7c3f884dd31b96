"""`berth queue` and `berth events`: waiting workspaces and past events."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_table
from portal.cli.errors import Missing, Unreachable, UsageError

RETRY_S = 1.0
MAX_PAGE = 200
NAMES = ("name", "slug", "username", "id")
SUBJECTS = ("workspace", "team", "pool", "node", "quota_request", "reservation", "owner", "requester", "user")


def queue(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List waiting workspaces in the scheduler's order."""
    rows = [row for row in client.queue.list(team=arguments.team) if row["own"] or not arguments.mine]
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("No workspaces are waiting.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("#", "NAME", "OWNER", "TEAM", "FLAVOR", "EXPECTED", "WAITS FOR")]
    for row in rows:
        place = "-" if row["position"] is None else str(row["position"])
        expected = _time(row["eta"]) if row["eta"] else "-"
        names = [row[key] or "-" for key in ("name", "owner", "team", "flavor")]
        table.append((place, *names, expected, row["message"]))
    return print_table(table)


def events(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print events of a workspace, or all visible ones. With -f, follow them."""
    if not arguments.workspace:
        return _watch_all(client, arguments)
    if arguments.type:
        raise UsageError("--type cannot be combined with a workspace.", "Omit one of them.")
    workspace = find(client, arguments)
    rows = list(client.workspaces.events(workspace["id"]))[-arguments.tail :]
    if arguments.json and not arguments.follow:
        return print_json(rows)
    for row in rows:
        _print(row, as_json=arguments.json)
    if not arguments.follow:
        return 0

    def is_terminated() -> bool:
        return bool(client.workspaces.get(workspace["id"])["state"] == "terminated")

    return _follow(
        partial(client.workspaces.stream_events, workspace["id"]), rows, is_terminated, as_json=arguments.json
    )


def _watch_all(client: BerthClient, arguments: argparse.Namespace) -> int:
    options = {"team": arguments.team, "type": arguments.type}
    filters = {name: value for name, value in options.items() if value}
    newest = client.events.list(sort="-id", page_size=min(arguments.tail, MAX_PAGE), **filters)
    rows = list(islice(newest, arguments.tail))[::-1]
    if arguments.json and not arguments.follow:
        return print_json(rows)
    for row in rows:
        _print(row, as_json=arguments.json)
    if not arguments.follow:
        return 0
    return _follow(partial(client.events.stream, **filters), rows, lambda: False, as_json=arguments.json)


def _follow(
    stream: Callable[..., Iterator[dict[str, Any]]],
    rows: list[dict[str, Any]],
    is_terminated: Callable[[], bool],
    *,
    as_json: bool,
) -> int:
    last = rows[-1]["id"] if rows else 0
    while True:
        try:
            # Check first: the stream then has all later events.
            is_over = is_terminated()
            for row in stream(after=last):
                last = row["id"]
                _print(row, as_json=as_json)
        except Missing:
            return 0
        except Unreachable as error:
            print(f"{error.message} Retrying …", file=sys.stderr, flush=True)
            time.sleep(RETRY_S)
            continue
        if is_over:
            return 0


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(row, ensure_ascii=False), flush=True)
    else:
        print(_line(row), flush=True)


def _line(row: dict[str, Any]) -> str:
    if "message" in row:
        return f"{_time(row['at'])}  {row['actor']} {row['message']}"
    data = row["data"]
    subjects = [data.get(kind) or {} for kind in SUBJECTS]
    names = [next((subject[key] for key in NAMES if subject.get(key)), "") for subject in subjects]
    names += [device["uuid"] for device in data.get("devices", ())]
    parts = [row["type"], *(name for name in names if name), f"by {data['actor']}"]
    return f"{_time(row['timestamp'])}  {' '.join(parts)}{': ' + data['code'] if data.get('code') else ''}"


def _time(stamp: str) -> str:
    """Format a timestamp in the local time zone, to the minute."""
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M}"
