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
        more = {"team": arguments.team} if arguments.team else {}
        rows = list(client.workspaces.list(owner=client.users.me()["username"], state="running", **more))
    pairs = [(row, client.workspaces.efficiency(row["id"])) for row in rows]
    if arguments.json:
        return print_json(
            [{"workspace": row["id"], "name": row["name"], "team": row["team"], **of} for row, of in pairs]
        )
    if not pairs:
        print("You have no running workspaces.", file=sys.stderr)
        return 0
    table = [(row["name"], row["team"], _percent(of["used"]), _percent(_measured(of))) for row, of in pairs]
    print_table([("WORKSPACE", "TEAM", "GPU TIME USED", "MEASURED"), *table], numbers_from=2)
    for row, of in pairs:
        if of["hint"]:
            print_line(
                " ".join(filter(None, (f"{row['name']}:", of["hint"]["message"], of["hint"]["next_action"])))
            )
    return 0


def _measured(of: dict[str, Any]) -> float | None:
    """Return None without a whole GPU, because utilisation is only measured for whole GPUs."""
    return None if of["since"] is None else of["measured"]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"
