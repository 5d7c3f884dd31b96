"""Waits until a workspace runs, has stopped, or is gone, showing its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from portal.cli.client import BerthClient
from portal.cli.errors import NEEDS_APPROVAL, Missing, RequestRejected, TimedOut, Unreachable

RETRY_S = 1.0
Workspace = dict[str, Any]
Show = Callable[[str], None]
MOVES = frozenset(
    f"workspace.{trigger}"
    for trigger in (
        *("place", "ready", "no_capacity", "fail", "stop", "stopped", "cancel"),
        *("lost", "terminate", "gone", "retry", "start"),
    )
)
STARTING = ("pending", "provisioning")


def wait_ready(
    client: BerthClient,
    workspace: Workspace,
    *,
    timeout_s: float,
    show: Show,
    goes_on: bool = True,
    requested: bool = False,
) -> Workspace:
    """Follow the events of a workspace until it runs, or never will.

    Raises `TimedOut`, after which its start continues unless the caller ends it, and `RequestRejected` if it
    needs an approval that was not `requested`.
    """

    def done(now: Workspace) -> bool:
        if _waits_for_approval(now) and not requested:
            advice = f"Request it at {now['portal_url']}."
            raise RequestRejected(failure_text(now), advice, status=409, code=NEEDS_APPROVAL)
        return now["state"] not in STARTING

    consequence = "Its start continues" if goes_on else "It is deleted"
    return _follow(
        client,
        workspace,
        done,
        timeout_s,
        show,
        TimedOut(
            f"{workspace['name']} was not ready after {timeout_s:g} s. {consequence}.",
            f"See {workspace['portal_url']}, or run `berth logs {workspace['id']}`." if goes_on else "",
        ),
    )


def wait_stopped(client: BerthClient, workspace: Workspace, *, timeout_s: float, show: Show) -> Workspace:
    """Wait until the workspace has stopped. Raises `TimedOut`; it then continues to stop."""
    late = f"{workspace['name']} did not stop within {timeout_s:g} s. It is still stopping."
    ended = ("stopped", "failed", "terminated")
    return _follow(
        client, workspace, lambda now: now["state"] in ended, timeout_s, show, _timeout(workspace, late)
    )


def wait_until_deleted(client: BerthClient, workspace: Workspace, *, timeout_s: float, show: Show) -> None:
    """Wait until the workspace is gone. Raises `TimedOut`; it then continues to end."""
    late = f"{workspace['name']} was not deleted within {timeout_s:g} s. The deletion continues."
    try:
        _follow(
            client,
            workspace,
            lambda now: now["state"] == "terminated",
            timeout_s,
            show,
            _timeout(workspace, late),
        )
    except Missing:
        return


def _timeout(workspace: Workspace, message: str) -> TimedOut:
    return TimedOut(message, f"See {workspace['portal_url']}.")


def _follow(
    client: BerthClient,
    workspace: Workspace,
    done: Callable[[Workspace], bool],
    timeout_s: float,
    show: Show,
    late: TimedOut,
) -> Workspace:
    ends_at = time.monotonic() + timeout_s
    last, shown = 0, line_of(workspace)
    while True:
        try:
            workspace = client.workspaces.get(workspace["id"])
            if line_of(workspace) != shown:
                shown = line_of(workspace)
                show(shown)
            if done(workspace):
                return workspace
            since = datetime.fromisoformat(workspace["state_since"])
            for event in client.workspaces.stream_events(
                workspace["id"], after=last, until=ends_at, keep_alives=True
            ):
                if not event:
                    # Its position in the queue changes without events.
                    break
                last = event["id"]
                # History comes first and is not new: only state changes need another request.
                if event["kind"] in MOVES and datetime.fromisoformat(event["at"]) >= since:
                    break
        except Unreachable as error:
            # The portal may be restarting; the workspace continues.
            if time.monotonic() > ends_at:
                raise
            show(f"{error.message} Retrying …")
            time.sleep(RETRY_S)
        if time.monotonic() > ends_at:
            raise late


def line_of(workspace: Workspace) -> str:
    """Return its status as one line: state, stage, position in the queue, expected start, error."""
    error = workspace["error"]
    detail = f": {error['message']}" if error and error["message"] else ""
    simulated = " (simulated)" if workspace["simulated"] else ""
    position = _place(workspace)
    return f"{workspace['name']} is {workspace['state']}{simulated}{_stage(workspace)}{position}{detail}"


def _waits_for_approval(workspace: Workspace) -> bool:
    return workspace["state"] in STARTING and (workspace["queue"] or {}).get("outcome") == NEEDS_APPROVAL


def failure_text(workspace: Workspace) -> str:
    return f"{line_of(workspace).rstrip('.')}."


def _stage(workspace: Workspace) -> str:
    """Return the current step of its start."""
    if workspace["state"] != "provisioning":
        return ""
    labels = (stage["label"] for stage in workspace.get("stages") or () if stage["state"] == "current")
    return f", {label}" if (label := next(labels, "")) else ""


def _place(workspace: Workspace) -> str:
    """Return its position in the queue and expected start, in local time."""
    queue = workspace["queue"] or {}
    text = ", waiting for approval" if _waits_for_approval(workspace) else ""
    if queue.get("position"):
        text += f", position {queue['position']}"
    if queue.get("eta"):
        at = datetime.fromisoformat(queue["eta"]).astimezone()
        today = at.date() == datetime.now(at.tzinfo).date()
        text += f", expected to start {at:%H:%M}" if today else f", expected to start {at:%d %b %H:%M}"
    return text
