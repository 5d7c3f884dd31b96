"""Waits until a workspace runs, has stopped, or is gone, and shows progress."""

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
    """Follow the events of a workspace until it runs, or can no longer run.

    Raises `TimedOut`; the start then continues unless the caller ends it. Raises `RequestRejected` if the
    workspace needs an approval that was not `requested`.
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
    """Wait until the workspace has stopped. Raises `TimedOut`; the stop then continues."""
    message = f"{workspace['name']} did not stop within {timeout_s:g} s. It is still stopping."
    ended = ("stopped", "failed", "terminated")
    return _follow(
        client, workspace, lambda now: now["state"] in ended, timeout_s, show, _timeout(workspace, message)
    )


def wait_until_deleted(client: BerthClient, workspace: Workspace, *, timeout_s: float, show: Show) -> None:
    """Wait until the workspace is gone. Raises `TimedOut`; the deletion then continues."""
    message = f"{workspace['name']} was not deleted within {timeout_s:g} s. The deletion continues."
    try:
        _follow(
            client,
            workspace,
            lambda now: now["state"] == "terminated",
            timeout_s,
            show,
            _timeout(workspace, message),
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
    timeout_error: TimedOut,
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
                    # The position in the queue changes without events.
                    break
                last = event["id"]
                # The stream begins with past events. Only new state changes need another request.
                if event["kind"] in MOVES and datetime.fromisoformat(event["at"]) >= since:
                    break
        except Unreachable as error:
            # The portal may be restarting; the workspace continues.
            if time.monotonic() > ends_at:
                raise
            show(f"{error.message} Retrying …")
            time.sleep(RETRY_S)
        if time.monotonic() > ends_at:
            raise timeout_error


def line_of(workspace: Workspace) -> str:
    """Return the workspace's status as one line: state, stage, queue position, expected start, error."""
    error = workspace["error"]
    detail = f": {error['message']}" if error and error["message"] else ""
    simulated = " (simulated)" if workspace["simulated"] else ""
    position = _queue_text(workspace) or engine_wait_text(workspace)
    return f"{workspace['name']} is {workspace['state']}{simulated}{_stage(workspace)}{position}{detail}"


def _waits_for_approval(workspace: Workspace) -> bool:
    return workspace["state"] in STARTING and (workspace["queue"] or {}).get("outcome") == NEEDS_APPROVAL


def failure_text(workspace: Workspace) -> str:
    return f"{line_of(workspace).rstrip('.')}."


def _stage(workspace: Workspace) -> str:
    """Return the current step of the start."""
    if workspace["state"] != "provisioning" or workspace.get("engine_wait"):
        return ""
    labels = (stage["label"] for stage in workspace.get("stages") or () if stage["state"] == "current")
    return f", {label}" if (label := next(labels, "")) else ""


def _queue_text(workspace: Workspace) -> str:
    """Return the position in the queue and the expected start, in local time."""
    queue = workspace["queue"] or {}
    text = ", waiting for approval" if _waits_for_approval(workspace) else ""
    if queue.get("position"):
        text += f", position {queue['position']}"
    return text + _expected(queue.get("eta"))


def engine_wait_text(workspace: Workspace) -> str:
    """Return the wait at the workspace's engine: pool, position, expected start in local time, and reason."""
    wait = workspace.get("engine_wait")
    if not wait:
        return ""
    text = f", waits at {workspace['pool']}"
    if wait["position"]:
        text += f", position {wait['position']}"
    text += _expected(wait["starts_at"])
    reason = ": ".join(part for part in (wait["code"], wait["message"]) if part)
    return f"{text}: {reason}" if reason else text


def _expected(stamp: str | None) -> str:
    if not stamp:
        return ""
    at = datetime.fromisoformat(stamp).astimezone()
    today = at.date() == datetime.now(at.tzinfo).date()
    return f", expected to start {at:%H:%M}" if today else f", expected to start {at:%d %b %H:%M}"
