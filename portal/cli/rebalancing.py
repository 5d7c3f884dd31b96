"""`berth rebalancing …`: proposals to move running work, for operators and auditors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import Missing, UsageError
from portal.cli.users import confirm

ID_LENGTH, MIN_PREFIX_LENGTH = 8, 4
"""Length of displayed ids, and minimum length of a unique prefix for `apply`."""
Proposal = dict[str, Any]


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    """List open proposals. With --all, also list earlier ones and their outcome."""
    rows = list(client.rebalance_proposals.list(**({} if arguments.all else {"state": "open"})))
    if arguments.json:
        return print_json(rows)
    if not rows:
        print("No proposals.", file=sys.stderr)
        return 0
    table: list[tuple[str, ...]] = [("ID", "STATE", "MOVES", "WHY", "INTERRUPTS")]
    table += [
        (row["id"][:ID_LENGTH], row["state"], _moves(row), row["message"], row["interrupts"]) for row in rows
    ]
    return print_table(table)


def apply(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Show which workspaces a proposal interrupts, confirm, and ask them to move."""
    row = _find_proposal(client.rebalance_proposals.list(state="open"), arguments.proposal)
    confirm(arguments, f"Move {_moves(row)}? {row['interrupts']}")
    row = client.rebalance_proposals.apply(row["id"])
    if arguments.json:
        return print_json(row)
    return print_line(f"{_moves(row)}: move started, users notified.")


def _find_proposal(rows: Iterable[Proposal], reference: str) -> Proposal:
    """Return the open proposal with this id or id prefix. Raises `Missing`, `UsageError`."""
    begins = reference.lower()
    matches = [row for row in rows if len(begins) >= MIN_PREFIX_LENGTH and row["id"].startswith(begins)]
    if not matches:
        raise Missing(f"No open proposal matches “{reference}”.", "`berth rebalancing` lists them.")
    if len(matches) > 1:
        ids = ", ".join(row["id"] for row in matches)
        raise UsageError(f"Several proposals match “{reference}”.", f"Choose one by id: {ids}.")
    return matches[0]


def _moves(row: Proposal) -> str:
    return ", ".join(_move(move) for move in row["moves"])


def _move(move: dict[str, Any]) -> str:
    name = move["name"] or "a deleted workspace"
    if move["from_node"] == move["to_node"]:
        return f"{name} within {move['to_node']}"
    return f"{name} {move['from_node']} → {move['to_node']}"
