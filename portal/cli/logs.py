"""`berth logs`: what a workspace's program writes, once or as it goes on."""

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
"""So many last lines that were printed are known, for when a workspace fails and what it kept is told."""


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
    """Print what comes until the workspace has ended; with --json a line for each of the log's."""
    after, seen = 0, deque[str](maxlen=REMEMBERED)
    while True:
        try:
            for told in client.workspaces.stream_logs(workspace_id, after=after, tail=arguments.tail):
                after, text = told["id"], told["text"]
                if told["kept"]:
                    # Its node has nothing any more. What was kept may have been printed in part.
                    fresh = fresh_lines(list(seen), text.splitlines())
                    text = "".join(f"{line}\n" for line in fresh)
                seen.extend(text.splitlines())
                _print(text, as_json=arguments.json)
                if told["message"]:
                    print(told["message"], file=sys.stderr, flush=True)
                if told["over"]:
                    return _end(told, as_json=arguments.json)
        except Unreachable as error:
            # The portal may be restarting. It goes on after what it has said.
            print(f"{error.message} Trying again …", file=sys.stderr, flush=True)
            time.sleep(RETRY_S)


def _end(told: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"state": told["state"]}), flush=True)
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


def fresh_lines(seen: list[str], now: list[str]) -> list[str]:
    """The lines of `now` that follow the end of `seen`; all of them where the two do not meet."""
    if not seen:
        return now
    for start in range(len(now), 0, -1):
        overlap = min(start, len(seen))
        if now[start - overlap : start] == seen[-overlap:] and (overlap == len(seen) or overlap == start):
            return now[start:]
    return now
