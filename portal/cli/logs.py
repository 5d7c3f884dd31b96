"""`berth logs`: output of a workspace's app, once or continuously."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.commands import find, print_json
from portal.cli.errors import Unreachable

RETRY_S = 1.0
REMEMBERED = 2000
"""Printed lines to remember, for matching the saved log of a failed workspace."""


def logs(client: BerthClient, arguments: argparse.Namespace) -> int:
    workspace = find(client, arguments)
    if arguments.follow:
        return _follow(client, workspace["id"], arguments)
    text = client.workspaces.logs(workspace["id"], tail=arguments.tail)
    if arguments.json:
        return print_json({"text": text})
    _write(text)
    return 0


def _follow(client: BerthClient, workspace_id: str, arguments: argparse.Namespace) -> int:
    """Print output until the workspace has ended. With --json, print one object per log line."""
    after, previous = 0, deque[str](maxlen=REMEMBERED)
    while True:
        try:
            for message in client.workspaces.stream_logs(workspace_id, after=after, tail=arguments.tail):
                after, text = message["id"], message["text"]
                if message["kept"]:
                    # The portal's saved copy may repeat lines that have been printed.
                    new_lines = fresh_lines(list(previous), text.splitlines())
                    text = "".join(f"{line}\n" for line in new_lines)
                previous.extend(text.splitlines())
                _print(text, as_json=arguments.json)
                if message["message"]:
                    print(message["message"], file=sys.stderr, flush=True)
                if message["over"]:
                    return _end(message, as_json=arguments.json)
        except Unreachable as error:
            # The portal may be restarting; the stream continues after the last message.
            print(f"{error.message} Retrying …", file=sys.stderr, flush=True)
            time.sleep(RETRY_S)


def _end(message: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"state": message["state"]}), flush=True)
    return 0


def _print(text: str, *, as_json: bool) -> None:
    if not as_json:
        _write(text)
        return
    for line in text.splitlines():
        print(json.dumps({"line": line}, ensure_ascii=False))
    sys.stdout.flush()


def _write(text: str) -> None:
    sys.stdout.write(text if not text or text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def fresh_lines(previous: list[str], now: list[str]) -> list[str]:
    """Return the lines of `now` that follow the end of `previous`; all lines if they do not overlap."""
    if not previous:
        return now
    for start in range(len(now), 0, -1):
        overlap = min(start, len(previous))
        if now[start - overlap : start] == previous[-overlap:] and (
            overlap == len(previous) or overlap == start
        ):
            return now[start:]
    return now
