"""`berth orphans …`: processes and folders on nodes without an owner, for operators."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import CliError, Missing, TimedOut, UsageError
from portal.cli.users import confirm

POLL_S = 2.0
PRESENT_STATES = ("found", "removing")
ID_LENGTH, MIN_PREFIX_LENGTH = 8, 4
"""Length of displayed ids, and minimum length of a unique prefix for `rm`."""
Orphan = dict[str, Any]


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List orphans with age, size and fate. With --all, also list recently removed ones."""
    rows = list(client.orphans.list(pool=arguments.pool, node=arguments.node, kind=arguments.kind))
    if not arguments.all:
        rows = [row for row in rows if row["state"] in PRESENT_STATES]
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("No orphans.", file=sys.stderr)
        return 0
    now = datetime.now(UTC)
    table: list[tuple[str, ...]] = [("ID", "WHAT", "NAME", "NODE", "SIZE", "AGE", "NEXT")]
    for row in rows:
        size = "-" if row["size_mib"] is None else _size(row["size_mib"])
        age = _span((now - datetime.fromisoformat(row["first_seen_at"])).total_seconds())
        kind = row["kind"].replace("_", " ")
        table.append((row["id"][:ID_LENGTH], kind, row["name"], row["node"], size, age, _fate(row, now)))
    return print_table(table)


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Delete an orphan after confirmation; a home folder needs its name. Exit code 1 if it remains.

    With --wait, wait until it is gone.
    """
    row = _find_orphan(client.orphans.list(), arguments.orphan)
    typed = _typed_name(row, arguments) if row["kind"] == "home" else ""
    if not typed:
        confirm(arguments, f"Delete the {row['kind'].replace('_', ' ')} {row['name']} on {row['node']}?")
    row = client.orphans.delete(row["id"], confirm=typed)
    if arguments.wait:
        row = _wait_until_gone(client, row, arguments.timeout)
    if arguments.json:
        print_json(row)
    elif row["state"] in PRESENT_STATES:
        print_line(row["problem"] or f"{row['name']} on {row['node']} is being deleted.")
    else:
        print_line(f"{row['name']} on {row['node']} deleted.")
    return 1 if row["problem"] else 0


def _find_orphan(rows: Iterable[Orphan], reference: str) -> Orphan:
    """Return the existing orphan with this id, id prefix, or name. Raises `Missing`, `UsageError`."""
    present = [row for row in rows if row["state"] in PRESENT_STATES]
    matches = [row for row in present if row["name"] == reference or _has_id_prefix(row, reference)]
    if not matches:
        raise Missing(f"No orphan matches “{reference}”.", "`berth orphans` lists them.")
    if len(matches) > 1:
        ids = ", ".join(row["id"] for row in matches)
        raise UsageError(f"Several orphans match “{reference}”.", f"Choose one by id: {ids}.")
    return matches[0]


def _has_id_prefix(row: Orphan, reference: str) -> bool:
    return len(reference) >= MIN_PREFIX_LENGTH and bool(row["id"].startswith(reference.lower()))


def _typed_name(row: Orphan, arguments: argparse.Namespace) -> str:
    """Return the typed name of a home folder. --yes is not enough, because deletion is permanent."""
    if arguments.confirm:
        return str(arguments.confirm)
    if not sys.stdin.isatty():
        raise UsageError(
            "No terminal to enter the name of the home folder.",
            f"Add --confirm {row['name']} to delete it.",
        )
    size = "" if row["size_mib"] is None else f", {_size(row['size_mib'])}"
    print(f"All files in {row['name']} on {row['node']}{size} will be permanently deleted.")
    print("Enter its name to delete it:", end=" ", flush=True)
    typed = sys.stdin.readline().strip()
    if typed != row["name"]:
        raise CliError("Nothing changed.")
    return typed


def _wait_until_gone(client: BerthClient, row: Orphan, timeout_s: float) -> Orphan:
    """Return the orphan once it is gone or its node failed. Raises `TimedOut`; the removal continues."""
    ends_at = time.monotonic() + timeout_s
    while row["state"] == "removing":
        if time.monotonic() > ends_at:
            raise TimedOut(
                f"{row['name']} was not deleted within {timeout_s:g} s. Berth retries.",
                "`berth orphans` shows its state.",
            )
        time.sleep(POLL_S)
        row = client.orphans.get(row["id"])
    return row


def _fate(row: Orphan, now: datetime) -> str:
    if row["state"] == "removing":
        return "being deleted"
    if row["state"] == "gone":
        return "gone"
    if row["state"] == "removed":
        return f"deleted by {row['removed_by']}" if row["removed_by"] else "deleted"
    if row["problem"]:
        return str(row["problem"])
    if row["removed_at"] is None:
        return "kept until you delete it"
    left_s = (datetime.fromisoformat(row["removed_at"]) - now).total_seconds()
    return f"deleted in {_span(left_s)}" if left_s > 0 else "deleted soon"


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def _span(seconds: float) -> str:
    """Format a duration in its largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
