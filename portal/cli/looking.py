"""`berth whoami|logout|show|templates|flavors|preview`: read-only commands and previews."""

from __future__ import annotations

import argparse
import os
from typing import Any

from portal.cli import config
from portal.cli.client import BerthClient
from portal.cli.commands import find, flavors_of, print_json, print_line, print_table
from portal.cli.errors import EXIT_NEEDS_APPROVAL, EXIT_REFUSED, NEEDS_APPROVAL
from portal.cli.waiting import engine_wait_text

EXITS = {"fits_now": 0, "queued": 0, NEEDS_APPROVAL: EXIT_NEEDS_APPROVAL, "impossible": EXIT_REFUSED}


def whoami(client: BerthClient, arguments: argparse.Namespace) -> int:
    me = client.users.me()
    if arguments.json:
        return print_json(me)
    teams = ", ".join(f"{team['slug']} ({team['role']})" for team in me["teams"]) or "no team"
    print(f"{me['username']} at {client.base_url}: {teams}")
    if me["token"]:
        ends = me["token"].get("expires_at") or "never"
        print(f"Token “{me['token']['name']}” for {', '.join(me['scopes'])}; expires: {ends}")
    return 0


def logout(arguments: argparse.Namespace) -> int:
    """Delete the stored token. It stays valid until it is revoked."""
    existed = config.forget(os.environ)
    if arguments.json:
        return print_json({"forgotten": existed})
    if not existed:
        return print_line("No stored token.")
    return print_line("Token deleted from this machine. To revoke it everywhere, see Tokens in your account.")


def show(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = find(client, arguments)
    if arguments.json:
        return print_json(workspace)
    queue, error = workspace["queue"] or {}, workspace["error"] or {}
    rows = (
        ("name", workspace["name"]),
        ("state", workspace["state"] + (" (simulated)" if workspace["simulated"] else "")),
        ("why", error.get("message", "") or _stop_reason(workspace["stopped"])),
        ("memory", _lost_program(workspace["out_of_memory"])),
        ("queue", _position(queue)),
        ("waits", engine_wait_text(workspace).removeprefix(", waits ")),
        ("address", workspace["url"]),
        ("page", workspace["portal_url"]),
        ("template", workspace["template"]),
        ("flavor", workspace["flavor"]),
        ("environment", workspace["environment"] or ""),
        ("team", workspace["team"]),
        ("owner", workspace["owner"]),
        ("pool", workspace["pool"] or ""),
        ("nodes", ", ".join(_nodes(workspace))),
        ("devices", ", ".join(_devices(workspace))),
        ("began", workspace.get("began_at") or ""),
        ("ends", workspace["ends_at"] or ""),
        ("id", workspace["id"]),
    )
    return print_table([(name, str(value)) for name, value in rows if value])


def _nodes(workspace: dict[str, Any]) -> list[str]:
    """Return the nodes of a workspace. If its engine places, those that the engine chose."""
    if workspace.get("engine_wait"):
        return []
    return [part["node"] for part in workspace.get("engine_place", ())] or workspace["nodes"]


def _devices(workspace: dict[str, Any]) -> list[str]:
    if workspace.get("engine_wait"):
        return []
    placed = [uuid for part in workspace.get("engine_place", ()) for uuid in part["devices"]]
    return placed or [device["uuid"] for device in workspace["devices"]]


def _stop_reason(cause: dict[str, Any] | None) -> str:
    """Return why and when the portal stopped the workspace, and by which rule."""
    if not cause:
        return ""
    rule = f" Rule {cause['rule']}, set by {cause['set_by']}." if cause["rule"] else ""
    return f"Berth stopped the workspace at {cause['at']}: {cause['message']}{rule}"


def _lost_program(lost: dict[str, Any] | None) -> str:
    """Return which program the system ended for lack of memory, and when the node reported it."""
    return f"{lost['message']} Reported at {lost['at']}." if lost else ""


def _position(queue: dict[str, Any]) -> str:
    parts = [f"position {queue['position']}"] if queue.get("position") else []
    if queue.get("eta"):
        parts.append(f"expected to start {queue['eta']}")
    elif queue.get("eta_basis"):
        parts.append(queue["eta_basis"])
    return ", ".join(parts)


def templates(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.templates.list())
    if arguments.json:
        return print_json(rows)
    lines = [(row["slug"], "yes" if row["available"] else "no", row["name"]) for row in rows]
    return print_table([("TEMPLATE", "AVAILABLE", "NAME"), *lines])


def flavors(client: BerthClient, arguments: argparse.Namespace) -> int:
    rows = list(client.flavors.list())
    if arguments.json:
        return print_json(rows)
    lines = [
        (
            row["slug"],
            f"{row['resources']['cpu_milli'] / 1000:g}",
            f"{row['resources']['memory_mib'] / 1024:g} GiB",
            _gpus(row["resources"]),
            row["name"] + (" (simulated)" if row["simulated"] else ""),
        )
        for row in rows
    ]
    return print_table([("FLAVOR", "CPU", "MEMORY", "GPU", "NAME"), *lines])


def _gpus(resources: dict[str, Any]) -> str:
    accelerators = resources["accelerators"]
    if not accelerators["count"]:
        return "-"
    models = [accelerators["model"]] if accelerators["model"] else accelerators["models"]
    text = f"{accelerators['count'] * resources['nodes']} × {' or '.join(models) or 'any'}"
    if accelerators["mig_profile"]:
        return f"{text} {accelerators['mig_profile']}"
    share = accelerators["share_milli"]
    return f"{text}, {share / 10:g} %, not isolated" if share < 1000 else text


def preview(client: BerthClient, arguments: argparse.Namespace) -> int:
    """Preview a request; exit code 0 if it would start without further action, now or later."""
    verdict = client.admission.preview(
        template=arguments.template,
        **flavors_of(arguments.flavor),
        start_within_min=arguments.start_within,
        team=arguments.team,
        environment=arguments.environment,
        start_without_gpu=arguments.start_without_gpu,
        move_home=arguments.move_home,
    )
    if arguments.json:
        print_json(verdict)
    else:
        if verdict.get("without_gpu"):
            print("No GPU is free. The workspace starts without GPUs; add them with `berth attach-gpu`.")
        print(verdict["message"])
        if verdict.get("flavor"):
            print(verdict["next_flavor"] or f"Flavor: {verdict['flavor']}")
        if verdict["eta"]:
            print(f"Expected to start: {verdict['eta']}")
        elif verdict["eta_basis"]:
            print(f"No estimate: {verdict['eta_basis']}")
        if verdict["outcome"] == NEEDS_APPROVAL and verdict["ask"]:
            print('  → `berth up … --ask "why"` requests it.')
        elif verdict["next_action"]:
            print(f"  → {verdict['next_action']}")
        if offer := verdict.get("home_move_offer"):
            gib, seconds = offer["size_mib"] / 1024, offer["seconds"]
            print(
                f"Starts now on {offer['to_node']} with --move-home: {gib:.1f} GiB of files move first, "
                f"about {seconds} s."
            )
        if verdict["alternatives"]:
            print(f"Would start now: {', '.join(verdict['alternatives'])}")
    return EXITS[verdict["outcome"]]
