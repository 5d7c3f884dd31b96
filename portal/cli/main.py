"""The command `berth`: workspaces from a shell. Imports only the modules of the command, to start fast."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from portal.cli import config, terminal
from portal.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from portal.cli.parser import parser
from portal.cli.signals import EXIT_TERMINATED, Terminated, terminating

READ_ONLY = ("whoami", "logout", "show", "templates", "flavors", "preview")
MODULES = {
    **dict.fromkeys(READ_ONLY, "looking"),
    "cp": "copying",
    "execute": "execute",
    "port_forward": "forwarding",
    "logs": "logs",
    "queue": "watching",
    "events": "watching",
    "efficiency": "efficiency",
    "usage": "usage",
}
"""Modules of commands; the default is `commands`."""
GROUPS = {
    "user": "users",
    "secret": "secrets",
    "environments": "environments",
    "announcements": "announcements",
    "archives": "archives",
    "bulk": "bulk",
    "files": "files",
    "homes": "homes",
    "maintenance": "maintenance",
    "orphans": "orphans",
    "rebalancing": "rebalancing",
    "requests": "requests",
    "service_account": "service_accounts",
    "teams": "teams",
}
"""Command groups and their modules."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        parser().print_help()
        return 0
    try:
        arguments = parser().parse_args(args)
    except SystemExit as leaving:
        if leaving.code == EXIT_USAGE and args[:2] == ["gpu", "check"]:
            # Exit codes of the GPU check are verdicts, and 2 is one of them.
            raise SystemExit(64) from None
        raise
    streams = sys.stdout, sys.stderr
    if not getattr(arguments, "raw", False):
        sys.stdout, sys.stderr = terminal.guard_terminal(sys.stdout), terminal.guard_terminal(sys.stderr)
    try:
        with contextlib.ExitStack() as quiet:
            if arguments.quiet:
                # stderr only has progress and notes; errors are raised and reported below.
                quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
            return _run(arguments)
    except CliError as error:
        _report(error, as_json=arguments.json)
        return error.exit_code
    except KeyboardInterrupt as ending:
        print("Interrupted.", file=sys.stderr)
        return EXIT_TERMINATED if isinstance(ending, Terminated) else EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has exited; prevent Python's own error message at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        sys.stdout, sys.stderr = streams


def _run(arguments: argparse.Namespace) -> int:
    if arguments.function == "gpu_check":
        # Imported here: the GPU check needs no client, and `--help` and mistyped commands need neither.
        from portal.cli import gpu

        return gpu.check(arguments)
    if arguments.function.startswith("node_"):
        try:
            # Imported here: the package `berth-cli` lacks the modules of nodes.
            from portal.cli import node
        except ModuleNotFoundError as error:
            raise CliError(
                "Only the command line is installed here. Nodes need the package berth.",
                "Install the package on this machine.",
            ) from error

        return node.run(arguments)
    if arguments.function == "completion":
        # Imported here: other commands do not need it.
        from portal.cli import completion

        return completion.completion(arguments)
    run = _function(arguments.function)
    if arguments.function in ("login", "logout"):
        return run(arguments)
    # Imported here: httpx takes longer to import than the rest of the command.
    from portal.cli.client import BerthClient
    from portal.cli.renewal import renewing

    stored = config.load(os.environ)
    with (
        terminating(),
        renewing(stored.url, stored.token),
        BerthClient(stored.url, stored.token) as client,
    ):
        return run(client, arguments)


def _function(name: str) -> Callable[..., int]:
    """Return the function of a command. Each module is imported only when needed."""
    for group, module in GROUPS.items():
        if name.startswith(f"{group}_"):
            return _load_command(module, name.removeprefix(f"{group}_"))
    return _load_command(MODULES.get(name, "commands"), name)


def _load_command(module: str, name: str) -> Callable[..., int]:
    function: Callable[..., int] = getattr(importlib.import_module(f"portal.cli.{module}"), name)
    return function


def _report(error: CliError, *, as_json: bool) -> None:
    if as_json:
        details: dict[str, Any] = {"message": error.message, "next_action": error.next_action}
        for name in ("status", "code", "request_id", "ask"):
            if getattr(error, name, None):
                details[name] = getattr(error, name)
        print(json.dumps({"error": details}))
        return
    print(f"berth: {error.message}", file=sys.stderr)
    if error.next_action:
        print(f"  → {error.next_action}", file=sys.stderr)
    if getattr(error, "status", 0) >= 500 and getattr(error, "request_id", ""):
        print(f"  request_id: {error.request_id}", file=sys.stderr)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
