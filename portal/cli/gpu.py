"""`berth gpu check`: the CUDA validation workload, on this machine or on a node of the portal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from portal.cli import config
from portal.cli.client import BerthClient
from portal.cli.errors import CliError, Unreachable

if TYPE_CHECKING:
    from provisioning.gpu.check.report import Report
    from provisioning.gpu.check.types import Progress

EXIT_CODES = {"pass": 0, "degraded": 1, "fail": 2, "inconclusive": 3, "hung": 5}
EXIT_UNAVAILABLE = 4
EXIT_USAGE = 64
EXIT_PORTAL = 69
EXIT_TIMEOUT = 75
POLL_INTERVAL_S = 1.0
EXIT_CODE_PRECEDENCE = (5, 2, EXIT_UNAVAILABLE, 3, 1, 0)
"""Precedence of exit codes with several devices: the first that occurs is returned."""


class _CheckCommandError(CliError):
    """An error with an exit code that differs from those of verdicts."""

    def __init__(self, message: str, next_action: str = "", exit_code: int = EXIT_PORTAL) -> None:
        super().__init__(message, next_action)
        self.exit_code = exit_code


def check(arguments: argparse.Namespace) -> int:
    """Run the check; return the exit code of the worst verdict."""
    if sum(map(bool, (arguments.device, arguments.uuid, arguments.node))) > 1:
        raise _CheckCommandError(
            "--uuid, --device and --node cannot be combined.", "Use one of them.", EXIT_USAGE
        )
    if arguments.with_node and not arguments.node:
        raise _CheckCommandError("A link check needs two nodes.", "Set --node and --with.", EXIT_USAGE)
    if arguments.device or arguments.node:
        try:
            return _through_portal(arguments)
        except _CheckCommandError:
            raise
        except CliError as error:
            raise _CheckCommandError(error.message, error.next_action) from error
    return _check_here(arguments)


def _check_here(arguments: argparse.Namespace) -> int:
    try:
        # Imported here: checks through the portal must work without the modules of nodes.
        from provisioning.gpu.check.report import render
        from provisioning.gpu.check.runner import run_check
    except ModuleNotFoundError as error:
        raise _CheckCommandError(
            "Only the command line is installed here. Local checks need the package berth.",
            "Install it, or check through the portal with --device.",
            EXIT_UNAVAILABLE,
        ) from error

    def show(progress: Progress) -> None:
        if progress.phase == "start" and sys.stderr.isatty():
            print(f"  [{progress.done + 1}/{progress.total}] {progress.test}", file=sys.stderr, flush=True)

    uuid = arguments.uuid
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        raise _CheckCommandError(
            f"{uuid!r} is not the UUID of a device.",
            "`nvidia-smi -L` lists UUIDs: GPU-… or MIG-….",
            EXIT_USAGE,
        )
    uuids = [uuid] if uuid else _uuids()
    if not uuids:
        return EXIT_UNAVAILABLE if not arguments.json else _no_gpu_as_json()
    reports: list[Report] = [run_check(gpu, arguments.level, on_progress=show) for gpu in uuids]
    if arguments.json:
        data = [report.to_dict() for report in reports]
        print(json.dumps(data[0] if uuid else data, indent=2))
    else:
        for report in reports:
            print(render(report))
    codes = {report.exit_code for report in reports}
    return next(code for code in EXIT_CODE_PRECEDENCE if code in codes)


def _uuids() -> list[str]:
    """Return the devices that can be checked here: MIG instances instead of partitioned GPUs."""
    # Imported here, as above.
    from provisioning.gpu.inventory import scan

    inventory = scan()
    names: list[str] = []
    for gpu in inventory.gpus:
        names += [instance.uuid for instance in gpu.instances] if gpu.instances else [gpu.uuid]
    for broken in inventory.broken:
        print(broken.sentence, file=sys.stderr)
    if not names:
        print(f"berth: {inventory.sentence}", file=sys.stderr)
    return names


def _no_gpu_as_json() -> int:
    print("[]")
    return EXIT_UNAVAILABLE


def _through_portal(arguments: argparse.Namespace) -> int:
    stored = config.load(os.environ)
    with BerthClient(stored.url, stored.token) as client:
        if arguments.node:
            node = _node(client, arguments.node)
            if arguments.with_node:
                far = _node(client, arguments.with_node)
                run = client.gpu_checks.create_link(node=node, with_node=far)
            else:
                run = client.gpu_checks.create_joint(node=node)
        else:
            run = client.gpu_checks.create(device=arguments.device, level=arguments.level)
        last_line = ""
        ends_at = time.monotonic() + arguments.timeout
        while _is_running(client, run):
            line = _progress_text(run)
            if line != last_line and not arguments.json:
                print(line, file=sys.stderr, flush=True)
            last_line = line
            if time.monotonic() > ends_at:
                raise _CheckCommandError(
                    f"No verdict after {arguments.timeout} s. The check continues.",
                    f"See {stored.url}/gpus/checks/{run['id']}/.",
                    EXIT_TIMEOUT,
                )
            time.sleep(POLL_INTERVAL_S)
            try:
                run = client.gpu_checks.get(run["id"])
            except Unreachable as error:
                # The portal may be restarting; the check continues.
                print(f"{error.message} Retrying …", file=sys.stderr)
        if run.get("partner"):
            # By now this end's verdict includes the results of the other end.
            run = client.gpu_checks.get(run["id"])
    return _end(run, arguments)


def _node(client: BerthClient, name: str) -> str:
    """Return the ID of the node with this name."""
    nodes = list(client.nodes.list(name=name))
    if len(nodes) != 1:
        problem = f"{len(nodes)} nodes are named" if nodes else "No node is named"
        raise _CheckCommandError(f"{problem} {name!r}.", "See the GPU map in the portal.")
    return str(nodes[0]["id"])


def _is_running(client: BerthClient, run: dict[str, Any]) -> bool:
    """Return whether a check is still running. A link check runs until both ends have finished."""
    goes_on = ("queued", "running")
    if run["state"] in goes_on:
        return True
    try:
        return bool(run.get("partner")) and client.gpu_checks.get(run["partner"])["state"] in goes_on
    except Unreachable:
        return True


def _progress_text(run: dict[str, Any]) -> str:
    progress = run["progress"]
    if run["state"] == "queued":
        return "queued"
    return (
        f"  [{progress['done'] + 1}/{progress['total']}] {progress['test']}" if progress["test"] else "begins"
    )


def _end(run: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(run, indent=2))
    else:
        simulated = " (simulated)" if run["simulated"] else ""
        verdict = (run["verdict"] or run["state"]).upper()
        subject = f"{run['uuid']}  {run['level']}"
        if run["kind"] == "pair":
            subject = f"{run['node']} – {run['partner_node']}  {run['uuid']}"
        elif run["kind"] == "joint":
            subject = f"{run['node']}  {1 + len(run['peers'])} GPUs at once"
        print(f"{subject}  {verdict}{simulated}: {run['summary']}")
        if run["recovery"] not in ("", "none"):
            print(f"  recovery: {run['recovery'].replace('_', ' ')}")
    if run["state"] != "done":
        return EXIT_PORTAL
    if run.get("report", {}).get("unavailable"):
        return EXIT_UNAVAILABLE
    return EXIT_CODES[run["verdict"]]
