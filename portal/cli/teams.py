"""`berth teams …`: teams; for their owners and operators."""

from __future__ import annotations

import argparse
import time
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import Missing, TimedOut
from portal.cli.users import confirm

POLL_S = 2.0
CONTENT_KINDS = (
    *("members", "service_accounts", "tokens", "workspaces", "homes", "templates", "environments"),
    *("secrets", "webhooks", "channels", "quotas"),
)
"""Counts of what is deleted with a team, in display order."""
Team = dict[str, Any]


def show_list(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.teams.list())
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("SLUG", "NAME", "ROLE", "MEMBERS", "STATUS")]
    for row in rows:
        members = str(row["member_count"])
        table.append((row["slug"], row["name"], row["role"] or "-", members, _state(row)))
    return print_table(table)


def show(client: BerthClient, arguments: argparse.Namespace) -> int:
    team, members = client.teams.get(arguments.team), list(client.teams.members(arguments.team))
    if arguments.json:
        return print_json({**team, "members": members})
    ignored = "" if team["member_shares"] else f"; {_turns(team)}"
    print_line(f"{team['name']} ({team['slug']}), {_state(team)}{ignored}")
    table: list[tuple[str, ...]] = [("MEMBER", "ROLE")]
    table.extend((row["username"], row["role"]) for row in members)
    return print_table(table)


def create(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create a team; print only its slug, for use in scripts."""
    team = client.teams.create(arguments.team, name=arguments.name, owner=arguments.owner)
    return print_json(team) if arguments.json else print_line(team["slug"])


def rename(client: BerthClient, arguments: argparse.Namespace) -> int:
    team = client.teams.rename(arguments.team, arguments.name)
    return print_json(team) if arguments.json else print_line(f"{team['slug']} is now {team['name']}.")


def member_shares(client: BerthClient, arguments: argparse.Namespace) -> int:
    team = client.teams.set_member_shares(arguments.team, on=arguments.state == "on")
    return print_json(team) if arguments.json else print_line(f"{team['slug']}: {_turns(team)}.")


def archive(client: BerthClient, arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        contents = client.teams.contents(arguments.team)
        stops = f"This stops {contents['active']} of {contents['workspaces']} workspaces. Files are kept."
        confirm(arguments, f"Archive {arguments.team}? {stops}")
    return _print_state(client.teams.archive(arguments.team), arguments)


def restore(client: BerthClient, arguments: argparse.Namespace) -> int:
    return _print_state(client.teams.restore(arguments.team), arguments)


def delete(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Show the team's contents, confirm and delete it. With --wait, wait until the slug can be reused."""
    slug = arguments.team
    contents = client.teams.contents(slug)
    if arguments.dry_run:
        return print_json(contents) if arguments.json else print_line(_summary(contents))
    confirm(
        arguments, f"{_summary(contents)}\nPermanently delete {slug}? Reports and the audit log are kept."
    )
    client.teams.delete(slug, homes=arguments.homes)
    deleted = _is_deleted(client, slug)
    deadline = time.monotonic() + arguments.timeout
    while arguments.wait and not deleted:
        if time.monotonic() > deadline:
            raise TimedOut(
                f"{slug} was not deleted within {arguments.timeout:g} s. The deletion continues.",
                f"`berth teams show {slug}` shows whether it is still there.",
            )
        time.sleep(POLL_S)
        deleted = _is_deleted(client, slug)
    if arguments.json:
        return print_json({"slug": slug, "deleted": deleted})
    return print_line(f"Team {slug} deleted." if deleted else f"Team {slug} is being deleted.")


def _is_deleted(client: BerthClient, slug: str) -> bool:
    try:
        client.teams.get(slug)
    except Missing:
        return True
    return False


def _print_state(team: Team, arguments: argparse.Namespace) -> int:
    return print_json(team) if arguments.json else print_line(f"{team['slug']} is {_state(team)}.")


def _turns(team: Team) -> str:
    return (
        "members take turns in the queue"
        if team["member_shares"]
        else "members do not take turns in the queue"
    )


def _state(team: Team) -> str:
    if team["deletion_started_at"]:
        return "deleting"
    return "archived" if team["archived_at"] else "active"


def _summary(contents: dict[str, Any]) -> str:
    """Return the counts of what is deleted with the team, such as `members 2, tokens 1`."""
    parts = [f"{name.replace('_', ' ')} {contents[name]}" for name in CONTENT_KINDS if contents[name]]
    parts += ["GPU-hours"] if contents["has_gpu_hours"] else []
    parts += ["budget"] if contents["has_budget"] else []
    return f"Deleted with the team: {', '.join(parts) or 'nothing'}."
