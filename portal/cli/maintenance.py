"""`berth maintenance …`: maintenance of the site or of a pool."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line
from portal.cli.users import confirm


def show(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print current or planned maintenance. Raises `Missing` if there is none."""
    row = client.maintenance.get(pool=arguments.pool)
    return print_json(row) if arguments.json else print_line(_line(row))


def on(client: BerthClient, arguments: argparse.Namespace) -> int:
    row = client.maintenance.set(
        pool=arguments.pool,
        reason=arguments.reason,
        begins_at=arguments.begins_at,
        ends_at=end_of(arguments),
    )
    return print_json(row) if arguments.json else print_line(_line(row))


def off(client: BerthClient, arguments: argparse.Namespace) -> int:
    confirm(arguments, f"End maintenance of {_name(arguments.pool)}? Queued workspaces start.")
    client.maintenance.end(pool=arguments.pool)
    if arguments.json:
        return print_json(None)
    return print_line(f"Maintenance of {_name(arguments.pool)} ended.")


def end_of(arguments: argparse.Namespace) -> str | None:
    """Return the end: `--until`, or `--hours` after the beginning; None without both."""
    if arguments.hours is None:
        until: str | None = arguments.ends_at
        return until
    begins_at = datetime.fromisoformat(arguments.begins_at) if arguments.begins_at else datetime.now(UTC)
    return (begins_at + timedelta(hours=arguments.hours)).isoformat()


def _name(pool: str) -> str:
    return f"pool {pool}" if pool else "the site"


def _line(row: dict[str, Any]) -> str:
    times = f"from {row['begins_at'][:16]} until {row['ends_at'][:16]} UTC"
    return f"Maintenance of {_name(row['pool'] or '')} {times}: {row['reason']}"
