"""`berth bulk …`: acts on many workspaces, after a preview of the effect on each."""

from __future__ import annotations

import argparse
import sys
import uuid
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_table
from portal.cli.errors import EXIT_REFUSED, CliError, Missing, UsageError
from portal.cli.users import confirm

MAX_AT_ONCE = 100
"""Workspaces that the portal takes in one request."""
FILTERS = ("team", "owner", "state", "flavor", "pool")
QUESTIONS = {
    "stop": "Stop {count}?",
    "extend": "Extend {count}?",
    "message": "Write to the owners of {count}?",
    "move": "Move {count} after a notice? Variables in memory are lost.",
    "cancel_move": "Cancel the moves of {count}?",
}
DONE = {
    "stop": "stopping",
    "extend": "extended",
    "message": "message sent",
    "move": "owner notified",
    "cancel_move": "stays where it is",
}
Line = dict[str, Any]


def stop(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _act(client, arguments, "stop")


def extend(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _act(client, arguments, "extend", preview={"hours": arguments.hours})


def message(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _act(client, arguments, "message", final_terms={"text": arguments.text})


def move(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _act(
        client, arguments, "move", preview={"node": arguments.to}, final_terms={"reason": arguments.reason}
    )


def cancel_move(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _act(client, arguments, "cancel_move")


def _act(
    client: BerthClient,
    arguments: argparse.Namespace,
    act: str,
    *,
    preview: dict[str, Any] | None = None,
    final_terms: dict[str, Any] | None = None,
) -> int:
    """Show what would happen to each workspace, confirm, and act on those where it is possible.

    `preview` has the terms for preview and act, `final_terms` those for the act only.
    """
    terms = preview or {}
    plan = client.workspaces.preview_act(_selected_ids(client, arguments), act=act, **terms)
    lines: list[Line] = plan["results"]
    if arguments.dry_run:
        return print_json(plan) if arguments.json else _print_plan(lines)
    possible = {line["id"]: line for line in lines if line["problem"] is None}
    if not possible:
        reasons = "; ".join(dict.fromkeys(line["problem"]["detail"] for line in lines))
        raise CliError(f"Nothing to do: {reasons}", "Add --dry-run to see each workspace.")
    if not arguments.yes and not arguments.json:
        _print_plan(lines)
    confirm(arguments, QUESTIONS[act].format(count=_count(len(possible))))
    answer = client.workspaces.act_on_many(list(possible), act=act, **terms, **(final_terms or {}))
    failed = any(result["problem"] is not None for result in answer["results"])
    # Filters may select workspaces that need no act, so skipping these is no failure.
    has_skipped = bool(arguments.workspaces) and len(possible) < len(lines)
    if arguments.json:
        skipped = [
            {"id": line["id"], "status": line["problem"]["status"], "workspace": None, **_problem(line)}
            for line in lines
            if line["problem"] is not None
        ]
        print_json({"results": [*answer["results"], *skipped]})
    else:
        _print_results(answer["results"], lines, act)
    return EXIT_REFUSED if failed or has_skipped else 0


def _selected_ids(client: BerthClient, arguments: argparse.Namespace) -> list[str]:
    """Return the ids of the named workspaces, or of those that the filters select. Raises `UsageError`."""
    filters = {name: value for name in FILTERS if (value := getattr(arguments, name))}
    if arguments.workspaces:
        if filters.keys() - {"team"}:
            raise UsageError("Names and filters cannot be combined.", "Use names, or filters.")
        ids = _ids_of(client, arguments.workspaces, arguments.team)
    elif filters:
        ids = []
        for row in client.workspaces.list(**filters):
            ids.append(row["id"])
            if len(ids) > MAX_AT_ONCE:
                break
    else:
        raise UsageError("No workspaces chosen.", "Add names, or a filter such as --team or --owner.")
    if not ids:
        raise CliError("No workspace matches the filters.", "`berth ls --all` lists those that you can see.")
    if len(ids) > MAX_AT_ONCE:
        raise UsageError(f"More than {MAX_AT_ONCE} workspaces match.", "Add a filter to choose fewer.")
    return ids


def _ids_of(client: BerthClient, references: list[str], team: str) -> list[str]:
    """Return ids for these ids and names of own workspaces. Raises `Missing`, `UsageError`."""
    ids = [_id(reference) for reference in references]
    names = {reference for reference, key in zip(references, ids, strict=True) if not key}
    by_name: dict[str, list[str]] = {}
    if names:
        for row in client.workspaces.list(owner=client.users.me()["username"], team=team):
            by_name.setdefault(row["name"], []).append(row["id"])
    for name in names:
        if name not in by_name:
            raise Missing(f"You have no workspace “{name}”.", "`berth ls` lists yours.")
        if len(by_name[name]) > 1:
            raise UsageError(f"You have “{name}” in several teams.", "Add --team.")
    return list(dict.fromkeys(key or by_name[name][0] for name, key in zip(references, ids, strict=True)))


def _id(reference: str) -> str:
    """Return the id in its usual form, or "" for a name."""
    try:
        return str(uuid.UUID(reference))
    except ValueError:
        return ""


def _print_plan(lines: list[Line]) -> int:
    table: list[tuple[str, ...]] = [("NAME", "OWNER", "STATE", "RESULT")]
    for line in lines:
        result = line["outcome"] or f"skipped: {line['problem']['detail']}"
        table.append((line["name"] or line["id"], line["owner"] or "-", line["state"] or "-", result))
    return print_table(table)


def _print_results(results: list[Line], lines: list[Line], act: str) -> None:
    names = {line["id"]: line["name"] or line["id"] for line in lines}
    for result in results:
        problem = result["problem"]
        print(f"{names[result['id']]}: {DONE[act] if problem is None else problem['detail']}")
    for line in lines:
        if line["problem"] is not None:
            print(f"{names[line['id']]} skipped: {line['problem']['detail']}", file=sys.stderr)


def _problem(line: Line) -> dict[str, Any]:
    return {"problem": line["problem"]}


def _count(count: int) -> str:
    return "1 workspace" if count == 1 else f"{count} workspaces"
