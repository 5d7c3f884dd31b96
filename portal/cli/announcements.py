"""`berth announcements …`: announcements above every page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import Missing, UsageError
from portal.cli.maintenance import end_of

ID_LENGTH, MIN_PREFIX_LENGTH = 8, 4
"""Length of displayed ids, and minimum length of an id prefix for `cancel`."""
Announcement = dict[str, Any]


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List current and scheduled announcements. With --all, also list ended ones."""
    rows = [row for row in client.announcements.list() if arguments.all or row["state"] != "ended"]
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("No announcements.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("ID", "STATE", "KIND", "FOR", "FROM (UTC)", "UNTIL (UTC)", "TEXT")]
    for row in rows:
        times = (row["begins_at"][:16], (row["ends_at"] or "-")[:16])
        shown_to = row["pool"] or "everybody"
        table.append((row["id"][:ID_LENGTH], row["state"], row["kind"], shown_to, *times, row["text"]))
    return print_table(table)


def create(client: BerthClient, arguments: argparse.Namespace) -> int:
    row = client.announcements.create(
        text=arguments.text,
        kind=arguments.kind,
        pool=arguments.pool,
        begins_at=arguments.begins_at,
        ends_at=end_of(arguments),
    )
    return print_json(row) if arguments.json else print_line(row["id"])


def cancel(client: BerthClient, arguments: argparse.Namespace) -> int:
    """End an announcement now."""
    row = _find_announcement(client.announcements.list(), arguments.announcement)
    row = client.announcements.cancel(row["id"])
    return print_json(row) if arguments.json else print_line(f"Ended: {row['text']}")


def _find_announcement(rows: Iterable[Announcement], reference: str) -> Announcement:
    """Return the announcement with this id or id prefix. Raises `Missing`, `UsageError`."""
    begins = reference.lower()
    matches = [row for row in rows if len(begins) >= MIN_PREFIX_LENGTH and row["id"].startswith(begins)]
    if not matches:
        raise Missing(f"No announcement matches “{reference}”.", "`berth announcements` lists them.")
    if len(matches) > 1:
        ids = ", ".join(row["id"] for row in matches)
        raise UsageError(f"Several announcements match “{reference}”.", f"Choose one by id: {ids}.")
    return matches[0]
