"""Argument types, and arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

MAX_HOURS = 366 * 24


def port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 1 to 65535")
    return number


def forward(text: str) -> tuple[int, int]:
    """Parse `[LOCAL:]PORT` into the local port (0: any free port) and the port in the workspace."""
    local, colon, inside = text.rpartition(":")
    try:
        number = port(inside)
        return (0 if colon and int(local) == 0 else port(local) if colon else number), number
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is neither PORT nor LOCAL:PORT") from error


def add_workspace_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("workspace", help="name or id")
    command.add_argument(
        "--team", default="", metavar="SLUG", help="slug of the team, if you use the name in several teams"
    )


def wait(command: argparse.ArgumentParser, help_text: str = "wait until it is ready") -> None:
    command.add_argument("--wait", action="store_true", help=help_text)
    command.add_argument(
        "--timeout", type=positive, default=600, metavar="SECONDS", help="with --wait; default: 600"
    )


def hours(text: str) -> float:
    hours = float(text)
    if not 1 / 60 <= hours <= MAX_HOURS:
        raise argparse.ArgumentTypeError(f"must be from 0.02 to {MAX_HOURS}")
    return hours


def amount_of(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def moment(text: str) -> str:
    """Parse a time (ISO 8601), by default in this machine's time zone. Returns it with its offset."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a time such as 2026-12-01T18:00") from error
    return (time if time.tzinfo is not None else time.astimezone()).isoformat()


def verb_of(
    group: str, verbs: Any, common: argparse.ArgumentParser, argument: str, metavar: str
) -> Callable[..., argparse.ArgumentParser]:
    """Return a function that adds a command to this group.

    Its commands take the positional `argument` and, with `confirms`, the option --yes.
    """

    def verb(
        name: str, summary: str, *, named: bool = True, confirms: bool = False
    ) -> argparse.ArgumentParser:
        subparser = verbs.add_parser(name, help=summary, description=summary, parents=[common])
        subparser.set_defaults(function=f"{group}_{name.replace('-', '_')}")
        if named:
            subparser.add_argument(argument, metavar=metavar)
        if confirms:
            subparser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
        return cast(argparse.ArgumentParser, subparser)

    return verb
