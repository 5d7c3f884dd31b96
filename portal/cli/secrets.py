"""`berth secret …`. Values are read from standard input, because arguments are visible in process lists."""

from __future__ import annotations

import argparse
import getpass
import sys

from portal.cli.client import BerthClient
from portal.cli.commands import print_json, print_line, print_table
from portal.cli.errors import UsageError
from portal.cli.users import confirm

MAX_BYTES = 64 * 1024


def ls(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.secrets.list(team=arguments.team, template=arguments.template))
    if arguments.json:
        return print_json(rows)
    table: list[tuple[str, ...]] = [("NAME", "PROVIDED AS", "IN", "WRITTEN", "DESCRIPTION")]
    for row in rows:
        kind = f"{row['kind']}, in Vault" if row.get("vault_path") else row["kind"]
        where = "every workspace" if row["everywhere"] or arguments.template else "where selected"
        table.append((row["name"], kind, where, row["changed_at"][:10], row["description"]))
    return print_table(table)


def set(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Save the value of a secret, or its location in Vault; values are never printed."""
    saved = client.secrets.put(
        arguments.name,
        team=arguments.team,
        template=arguments.template,
        **(_vault_location(arguments.vault) if arguments.vault else {"value": _value(arguments)}),
        kind="file" if arguments.file else "",
        description=arguments.description,
        everywhere=arguments.everywhere,
    )
    return print_json(saved) if arguments.json else print_line(f"Secret {saved['name']} saved.")


def rm(client: BerthClient, arguments: argparse.Namespace) -> int:
    confirm(arguments, f"Permanently delete the secret {arguments.name}?")
    client.secrets.delete(arguments.name, team=arguments.team, template=arguments.template)
    if arguments.json:
        return print_json({"name": arguments.name, "deleted": True})
    return print_line(f"Secret {arguments.name} deleted.")


def _vault_location(text: str) -> dict[str, str]:
    """Return the location of a value in Vault. Raises `UsageError` if the key is missing."""
    path, sign, key = text.rpartition("#")
    if not (path and sign and key):
        raise UsageError(
            f"{text} is not a path and key in Vault.", "Use the form berth/users/ada/wandb#api_key"
        )
    return {"vault_path": path, "vault_key": key}


def _value(arguments: argparse.Namespace) -> str:
    """Read a value without echo, or from standard input. Raises `UsageError` for an invalid one."""
    if sys.stdin.isatty():
        value = getpass.getpass("Value: ")
    else:
        data = sys.stdin.buffer.read(MAX_BYTES + 2)
        try:
            value = data.decode()
        except UnicodeDecodeError:
            raise UsageError("The value is not UTF-8 text.", "Encode it, for example with base64.") from None
        if not arguments.file:
            value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError("The value is empty.", "Pass it on standard input: berth secret set NAME < file")
    return value
