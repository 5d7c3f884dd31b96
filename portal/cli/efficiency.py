"""`berth efficiency`: GPU utilisation of workspaces, with one hint each."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json, print_line, print_table


def efficiency(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Print the utilisation of one workspace, or of the user's own running workspaces."""
    if arguments.workspace:
        rows = [find(client, arguments)]
    else:
        filters = {"team": arguments.team} if arguments.team else {}
        rows = list(client.workspaces.list(owner=client.users.me()["username"], state="running", **filters))
    pairs = [(row, client.workspaces.efficiency(row["id"])) for row in rows]
    if arguments.json:
        return print_json(
            [
                {"workspace": row["id"], "name": row["name"], "team": row["team"], **shares}
                for row, shares in pairs
            ]
        )
    if not pairs:
        print("You have no running workspaces.", file=sys.stderr)
        return 0
    table = [
        (row["name"], row["team"], _percent(shares["used"]), _percent(_measured_share(shares)))
        for row, shares in pairs
    ]
    print_table([("WORKSPACE", "TEAM", "GPU TIME USED", "MEASURED"), *table], numbers_from=2)
    for row, shares in pairs:
        if shares["hint"]:
            print_line(
                " ".join(
                    filter(
                        None,
                        (
                            f"{row['name']}:",
                            shares["hint"]["message"],
                            shares["hint"]["next_action"],
                        ),
                    )
                )
            )
    return 0


def _measured_share(shares: dict[str, Any]) -> float | None:
    """Return the measured share, or None without a whole GPU, because only whole GPUs are measured."""
    return None if shares["since"] is None else shares["measured"]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"
