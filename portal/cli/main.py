"""The command `berth`: workspaces from a shell. Imports only what a run needs, so that it starts at once."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from portal.cli import config, terminal
from portal.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CliError
from portal.cli.parser import parser

LOOKING = frozenset({"whoami", "logout", "show", "templates", "flavors", "preview"})
"""What `looking` does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:
        parser().print_help()
        return 0
    try:
        arguments = parser().parse_args(given)
    except SystemExit as leaving:
        if leaving.code == EXIT_USAGE and given[:2] == ["gpu", "check"]:
            # Its exit codes are verdicts, and 2 is one of them.
            raise SystemExit(64) from None
        raise
    streams = sys.stdout, sys.stderr
    if not getattr(arguments, "raw", False):
        sys.stdout, sys.stderr = terminal.guarded(sys.stdout), terminal.guarded(sys.stderr)
    try:
        return _run(arguments)
    except CliError as error:
        _report(error, as_json=arguments.json)
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; Python must not complain about it at its own end either.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        sys.stdout, sys.stderr = streams


def _run(arguments: argparse.Namespace) -> int:
    # Imports here: the check needs no client, and `--help` and mistyped commands need neither.
    if arguments.function == "gpu_check":
        from portal.cli import gpu

        return gpu.check(arguments)
    if arguments.function.startswith("node_"):
        from portal.cli import node

        return node.run(arguments)
    run: Callable[..., int]
    if arguments.function.startswith("user_"):
        from portal.cli import users

        run = getattr(users, arguments.function.removeprefix("user_"))
    elif arguments.function.startswith("secret_"):
        from portal.cli import secrets

        run = getattr(secrets, arguments.function.removeprefix("secret_"))
    elif arguments.function.startswith("environments_"):
        from portal.cli import environments

        run = getattr(environments, arguments.function.removeprefix("environments_"))
    elif arguments.function.startswith("archives_"):
        from portal.cli import archives

        run = getattr(archives, arguments.function.removeprefix("archives_"))
    elif arguments.function.startswith("files_"):
        from portal.cli import files

        run = getattr(files, arguments.function.removeprefix("files_"))
    elif arguments.function.startswith("homes_"):
        from portal.cli import homes

        run = getattr(homes, arguments.function.removeprefix("homes_"))
    elif arguments.function.startswith("orphans_"):
        from portal.cli import orphans

        run = getattr(orphans, arguments.function.removeprefix("orphans_"))
    elif arguments.function.startswith("service_account_"):
        from portal.cli import service_accounts

        run = getattr(service_accounts, arguments.function.removeprefix("service_account_"))
    elif arguments.function in LOOKING:
        from portal.cli import looking

        run = getattr(looking, arguments.function)
    else:
        from portal.cli import commands

        run = getattr(commands, arguments.function)
    if arguments.function in ("login", "logout"):
        return run(arguments)
    from portal.cli.client import BerthClient

    stored = config.load(os.environ)
    with BerthClient(stored.url, stored.token) as client:
        return run(client, arguments)


def _report(error: CliError, *, as_json: bool) -> None:
    if as_json:
        import json

        details: dict[str, Any] = {"message": error.message, "next_action": error.next_action}
        for name in ("status", "code", "request_id"):
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
