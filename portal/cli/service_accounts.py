"""`berth service-account …`: service accounts of teams, their tokens and trust rules."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import Missing, UsageError
from portal.cli.users import confirm, print_changed

PREFIX = "svc-"


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    teams = [arguments.team] if arguments.team else [row["slug"] for row in client.users.me()["teams"]]
    rows = [row for team in teams for row in client.service_accounts.list(team)]
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("NAME", "TEAM", "STATUS", "TOKENS", "LAST USED", "DESCRIPTION")]
    for row in rows:
        tokens, used = str(row["token_count"]), _minute(row["last_used_at"])
        table.append((row["username"], row["team"], row["state"], tokens, used, row["description"]))
    return print_table(table)


def create(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create a service account; print only its name, for use in scripts."""
    account = client.service_accounts.create(
        _team(client, arguments), name=arguments.username, description=arguments.description
    )
    return print_json(account) if arguments.json else print_line(account["username"])


def deactivate(client: BerthClient, arguments: argparse.Namespace) -> int:
    name = _account(arguments)
    confirm(
        arguments, f"Deactivate {name}? This revokes its tokens and stops its workspaces. Files are kept."
    )
    team = _team(client, arguments)
    return print_changed(client.service_accounts.deactivate(team, name, note=arguments.note), arguments)


def reactivate(client: BerthClient, arguments: argparse.Namespace) -> int:
    account = client.service_accounts.reactivate(_team(client, arguments), _account(arguments))
    return print_changed(account, arguments)


def tokens(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.service_accounts.tokens(_team(client, arguments), _account(arguments)))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("TOKEN", "NAME", "SCOPES", "ENDS", "LAST USED")]
    for row in rows:
        scopes, ends = ", ".join(row["scopes"]), _minute(row["expires_at"])
        table.append((row["prefix"], row["name"], scopes, ends, _minute(row["last_used_at"])))
    return print_table(table)


def issue(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create a token; print only its secret."""
    ends = datetime.now(UTC) + timedelta(days=arguments.days) if arguments.days else None
    created = client.service_accounts.create_token(
        _team(client, arguments),
        _account(arguments),
        name=arguments.purpose,
        scopes=arguments.scope,
        expires_at=ends.isoformat(timespec="seconds") if ends else "",
    )
    return _print_secret(created, arguments)


def rotate(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Replace a token by a new one; print only its secret."""
    token = _token(client, arguments)
    return _print_secret(client.tokens.rotate(token["id"], overlap_hours=arguments.overlap_hours), arguments)


def revoke(client: BerthClient, arguments: argparse.Namespace) -> int:
    token = _token(client, arguments)
    confirm(arguments, f"Revoke the token {token['prefix']}… (“{token['name']}”) of {token['owner']} now?")
    client.tokens.revoke(token["id"])
    if arguments.json:
        return print_json({"id": token["id"], "prefix": token["prefix"], "revoked": True})
    return print_line(f"Token {token['prefix']}… revoked.")


def trust_rules(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.service_accounts.trust_rules(_team(client, arguments), _account(arguments)))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("ID", "NAME", "ISSUER", "AUDIENCE", "CONDITIONS", "SCOPES", "LAST USED")]
    for row in rows:
        conditions = ", ".join(
            f"{condition['claim']} {SIGNS[condition['match']]} {condition['value']}"
            for condition in row["conditions"]
        )
        columns = (row["id"][:8], row["name"], row["issuer"], row["audience"], conditions)
        table.append((*columns, ", ".join(row["scopes"]), _minute(row["last_used_at"])))
    return print_table(table)


def trust(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Create a trust rule; print only its id, for use in scripts."""
    rule = client.service_accounts.create_trust_rule(
        _team(client, arguments),
        _account(arguments),
        name=arguments.rule,
        issuer=arguments.issuer,
        audience=arguments.audience or client.base_url,
        conditions=[_condition(text) for text in arguments.condition],
        scopes=arguments.scope,
        lifetime_s=arguments.minutes * 60,
    )
    return print_json(rule) if arguments.json else print_line(rule["id"])


def untrust(client: BerthClient, arguments: argparse.Namespace) -> int:
    team, name, reference = _team(client, arguments), _account(arguments), str(arguments.rule)
    rows = list(client.service_accounts.trust_rules(team, name))
    matches = [row for row in rows if reference == row["name"]]
    matches = matches or [row for row in rows if reference and row["id"].startswith(reference)]
    see = f"`berth service-account trust-rules {name}` lists them."
    if not matches:
        raise Missing(f"{name} has no trust rule “{reference}”.", see)
    if len(matches) > 1:
        raise UsageError(
            f"{name} has {len(matches)} trust rules “{reference}”.", f"Enter its id instead: {see}"
        )
    rule = matches[0]
    confirm(arguments, f"Delete the trust rule “{rule['name']}” of {name}? Its pipelines get no new tokens.")
    client.service_accounts.delete_trust_rule(team, name, rule["id"])
    if arguments.json:
        return print_json({"id": rule["id"], "deleted": True})
    return print_line(f"Trust rule “{rule['name']}” deleted.")


SIGNS = {"exact": "=", "glob": "~"}
"""Operator of each kind of condition."""


def _condition(text: str) -> dict[str, str]:
    """Parse a condition: `claim = value` or `claim ~ pattern`. Raises `UsageError`."""
    signs = [text.index(sign) for sign in SIGNS.values() if sign in text]
    position = min(signs, default=0)
    claim, value = text[:position].strip(), text[position + 1 :].strip()
    if not claim or not value:
        raise UsageError(
            f"“{text}” is not a condition.", "Write “claim = value”, or “claim ~ pattern” for a pattern."
        )
    return {
        "claim": claim,
        "match": next(match for match, sign in SIGNS.items() if sign == text[position]),
        "value": value,
    }


def _print_secret(created: dict[str, Any], arguments: argparse.Namespace) -> int:
    return print_json(created) if arguments.json else print_line(created["secret"])


def _account(arguments: argparse.Namespace) -> str:
    """Return the account's name with the common prefix."""
    username = str(arguments.username)
    return username if username.startswith(PREFIX) else PREFIX + username


def _team(client: BerthClient, arguments: argparse.Namespace) -> str:
    """Return the given team, else the only one. Raises `UsageError` if it is ambiguous."""
    if arguments.team:
        return str(arguments.team)
    teams = [row["slug"] for row in client.users.me()["teams"]]
    if len(teams) != 1:
        raise UsageError("No team was given, and you are not in exactly one.", "Add --team SLUG.")
    return str(teams[0])


def _token(client: BerthClient, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the account's token with this id, prefix or name.

    Raises `Missing` without a match and `UsageError` for several.
    """
    name, reference = _account(arguments), str(arguments.token)
    rows = list(client.service_accounts.tokens(_team(client, arguments), name))
    matches = [row for row in rows if reference in (row["id"], row["prefix"])]
    matches = matches or [row for row in rows if reference == row["name"]]
    see = f"`berth service-account tokens {name}` lists them."
    if not matches:
        raise Missing(f"{name} has no token “{reference}”.", see)
    if len(matches) > 1:
        raise UsageError(f"{name} has {len(matches)} tokens “{reference}”.", f"Enter its beginning: {see}")
    return matches[0]


def _minute(at: str | None) -> str:
    """Format an API timestamp to the minute, in UTC; a dash for None."""
    if not at:
        return "-"
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%MZ")
