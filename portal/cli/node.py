"""`berth node`: runs this machine as a node of a portal on another machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from portal.cli.errors import EXIT_REFUSED, EXIT_UNREACHABLE, CliError
from provisioning.host import joining, leaving, membership, rotation, running, status, suspending
from provisioning.host.door import RequestRefused, ResponseLost, Unreachable
from provisioning.host.folder import NodeFolder
from provisioning.host.joining import JoinCommand, JoinOptions
from provisioning.service.console import LABEL_WIDTH, Console, Problem


class _NodeCommandError(CliError):
    """A problem to fix on this machine or at the portal; `code` is the portal's reason for a refusal."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, problem.fix)
        away = isinstance(problem, Unreachable | ResponseLost)
        self.exit_code = EXIT_UNREACHABLE if away else EXIT_REFUSED
        if isinstance(problem, RequestRefused):
            self.code = problem.code


def run(arguments: argparse.Namespace) -> int:
    """Run one command; return its exit code. Raises `CliError`."""
    folder = NodeFolder.find(arguments.home, os.environ)
    # With --json, standard output contains only the JSON.
    console = Console(sys.stderr if arguments.json else None)
    verb = arguments.function.removeprefix("node_")
    try:
        match verb:
            case "join":
                return _join(folder, arguments, console)
            case "run":
                return running.NodeRun(folder, os.environ, console).run()
            case "status":
                return _status(folder, arguments)
            case "rotate":
                return _rotate(folder, arguments, console)
            case "leave":
                leaving.leave(
                    folder,
                    os.environ,
                    console,
                    forget=arguments.forget,
                    workspaces=arguments.workspaces,
                )
                return 0
            case "try_suspend":
                done = suspending.try_suspend(folder, console, device=arguments.device, onto=arguments.onto)
            case "suspend":
                done = suspending.suspend(folder, console, arguments.workspace)
            case "resume":
                done = suspending.resume(folder, console, arguments.workspace)
            case _:
                return _environment(folder, console)
        print(json.dumps(done.data, indent=2) if arguments.json else done.text)
        return 0
    except Problem as problem:
        failed = _NodeCommandError(problem)
        if verb == "status" and not folder.state_file.exists():
            failed.exit_code = status.EXIT_NOT_RUNNING
        raise failed from problem


def _join(folder: NodeFolder, arguments: argparse.Namespace, console: Console) -> int:
    token = arguments.token
    if token == "-":  # noqa: S105  (standard input)
        token = sys.stdin.readline()
    options = JoinOptions(
        url=arguments.url,
        token=token,
        name=arguments.name,
        address=arguments.address,
        gateway_port=arguments.gateway_port,
        service=not arguments.no_service,
        environment=not arguments.no_environment,
        rack=arguments.rack,
        block=arguments.block,
    )
    joined = JoinCommand(folder, options, os.environ, console).run()
    if arguments.json:
        print(json.dumps({"node": joined.name, "pool": joined.answer.pool, "home": str(folder.home)}))
    return 0


def _status(folder: NodeFolder, arguments: argparse.Namespace) -> int:
    report = status.read(folder)
    if arguments.json:
        print(json.dumps(asdict(report), indent=2))
        return report.exit_code
    print(f"Node {report.node} of pool {report.pool}, {report.portal}")
    for fact in report.facts:
        print(f"  {'✓' if fact.good else '✗'} {fact.name.capitalize():<{LABEL_WIDTH}} {fact.text}")
    return report.exit_code


def _rotate(folder: NodeFolder, arguments: argparse.Namespace, console: Console) -> int:
    stored = membership.load(folder)
    membership.check_user(stored)
    with console.step("Keys") as step:
        step.update("asking the portal")
        renewed = rotation.rotate(folder, stored)
        step.result = f"rotated; valid until {rotation.expiry_date(renewed)}"
    if arguments.json:
        print(json.dumps({"node": renewed.name, "until": rotation.expiry_date(renewed)}))
    return 0


def _environment(folder: NodeFolder, console: Console) -> int:
    running.prepare(folder)
    return 0 if joining.make_environment(folder, os.environ, console) else EXIT_REFUSED
