"""`berth user …`: accounts, for administrators."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import CliError, UsageError


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(
        client.users.list(q=arguments.search, state=arguments.state, second_factor=arguments.second_factor)
    )
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("NAME", "STATUS", "FACTORS", "E-MAIL", "ROLES", "TEAMS")]
    for row in rows:
        teams = ", ".join(f"{place['team']} ({place['role']})" for place in row["teams"])
        enrolled = row["second_factors"]
        factors = "-" if enrolled is None else ", ".join(enrolled) or "none"
        roles = ", ".join(row["roles"])
        table.append((row["username"], row["state"], factors, row["email"], roles, teams))
    return print_table(table)


def invite(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create an account; print only its invitation link, for use in scripts."""
    role = "owner" if arguments.owner else "viewer" if arguments.viewer else "member"
    teams = [{"team": slug, "role": role} for slug in arguments.team]
    invited = client.users.invite(
        username=arguments.username, email=arguments.email, teams=teams, roles=arguments.role
    )
    return print_json(invited) if arguments.json else print_line(invited["invite_url"])


def deactivate(client: BerthClient, arguments: argparse.Namespace) -> int:
    confirm(
        arguments,
        f"Deactivate {arguments.username}? Sessions and tokens end, workspaces stop. Files are kept.",
    )
    return print_changed(client.users.deactivate(arguments.username, note=arguments.note), arguments)


def reactivate(client: BerthClient, arguments: argparse.Namespace) -> int:
    return print_changed(client.users.reactivate(arguments.username), arguments)


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    homes = "Home folders are also deleted." if arguments.homes else "Home folders are kept."
    confirm(arguments, f"Permanently delete the account of {arguments.username}? {homes}")
    client.users.delete(arguments.username, workspaces=arguments.workspaces, homes=arguments.homes)
    if arguments.json:
        return print_json({"username": arguments.username, "deleted": True})
    return print_line(f"Account {arguments.username} deleted.")


def print_changed(user: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Print the account's new state."""
    return print_json(user) if arguments.json else print_line(f"{user['username']} is {user['state']}.")


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Ask for confirmation. Raises `CliError` unless confirmed, and `UsageError` without a terminal."""
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("No terminal to ask for confirmation.", "Add --yes to confirm.")
    print(question, end=" [y/N] ", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("Nothing changed.")
