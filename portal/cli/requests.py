"""`berth requests …`: requests for more quota and decisions on them."""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import end_after_hours, print_json, print_line, print_table
from portal.cli.errors import Missing, UsageError

UNITS = {"workspaces": 1, "memory_mib": 1024, "disk_mib": 1024, "gpu_hours": 3_600_000}
"""REST units per unit shown to users: GiB, GPU-hours. GPUs and cores use thousandths."""
THOUSANDTHS = 1000


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.quota_requests.list(state="" if arguments.all else "open", team=arguments.team))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("ID", "STATUS", "TEAM", "WHO", "RESOURCE", "AMOUNT", "UNTIL", "WHY")]
    for row in rows:
        amount = f"{row['amount'] / _unit(row['resource']):g}"
        until = (row["until"] or "-")[:16]
        columns = (row["id"][:8], row["state"], row["team"], row["requester"], row["resource"], amount, until)
        table.append((*columns, row["note"].splitlines()[0] if row["note"] else ""))
    return print_table(table) if rows else 0


def ask(client: BerthClient, arguments: argparse.Namespace) -> int:
    team = arguments.team or _only_team(client)
    request = {
        "team": team,
        "kind": arguments.kind,
        "resource": arguments.resource,
        "amount": base_units(arguments.amount, arguments.resource),
        "until": _until(arguments.hours),
        "note": arguments.note,
    }
    return _print_decision(client.quota_requests.create(**request), arguments)


def approve(client: BerthClient, arguments: argparse.Namespace) -> int:
    request = _find(client, arguments.request)
    decision: dict[str, Any] = {"note": arguments.note, "until": _until(arguments.hours)}
    if arguments.amount is not None:
        decision["amount"] = base_units(arguments.amount, request["resource"])
    return _print_decision(client.quota_requests.approve(request["id"], **decision), arguments)


def deny(client: BerthClient, arguments: argparse.Namespace) -> int:
    request = _find(client, arguments.request)
    return _print_decision(client.quota_requests.deny(request["id"], note=arguments.note), arguments)


def cancel(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _print_decision(client.quota_requests.cancel(_find(client, arguments.request)["id"]), arguments)


def _find(client: BerthClient, reference: str) -> dict[str, Any]:
    """Return the request with this id or unique prefix. Raises `Missing` and `UsageError`."""
    try:
        return client.quota_requests.get(str(uuid.UUID(reference)))
    except ValueError:
        pass
    rows = [
        row for row in client.quota_requests.list(state="open") if row["id"].startswith(reference.lower())
    ]
    if not rows or not reference:
        raise Missing(f"No open request matches “{reference}”.", "`berth requests` lists them.")
    if len(rows) > 1:
        raise UsageError(f"Several open requests match “{reference}”.", "Enter more of the id.")
    return rows[0]


def _print_decision(request: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.json:
        return print_json(request)
    amount = request["amount"]
    if request["state"] == "approved":
        amount = request["granted_amount"] or amount
    number = f"{amount / _unit(request['resource']):g}"
    return print_line(
        f"{request['id'][:8]}: {request['state']}, {number} {request['resource']} for {request['team']}."
    )


def _unit(resource: str) -> int:
    return UNITS.get(resource, THOUSANDTHS)


def base_units(amount: float, resource: str) -> int:
    return round(amount * _unit(resource))


def _until(hours: float | None) -> str:
    return "" if hours is None else end_after_hours(hours)


def _only_team(client: BerthClient) -> str:
    teams = [row["slug"] for row in client.users.me()["teams"]]
    if len(teams) != 1:
        raise UsageError(
            "Choose a team.", f"Add --team with one of: {', '.join(teams) or 'you have no team'}."
        )
    return str(teams[0])
