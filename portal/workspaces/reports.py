"""Validates agents' reports. An agent is a process of its user and may send anything.

A report is refused as a whole if it is not a JSON object, or if a text that the portal acts on is invalid.
Invalid heartbeat figures are replaced by null, as if not measured. Unknown fields are dropped.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from portal.common.json_input import InvalidJson, parse_json
from portal.common.texts import strip_nul
from provisioning.endpoints import host_and_port, socket_name

log = logging.getLogger(__name__)

MAX_ENDPOINT = 200
MAX_LOG_TAIL = 20_000
MAX_GPUS = 64
INT32 = 2**31 - 1
LOG_EVERY_S = 3600.0
"""Minimum interval in seconds between log entries about invalid figures of one workspace."""
_LOGGED_MAX = 1024

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Mib = Annotated[int, Meta(ge=0, le=INT32)]
Whole = Annotated[int, Meta(ge=0, le=INT32)]
Stamp = Annotated[str, Meta(max_length=40)]
MAX_COUNTS = 4
CountName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,29}\Z")]
Rate = Annotated[float, Meta(gt=0, le=1e15)]


class Kernels(msgspec.Struct):
    """The number of kernels, and the time of their last activity (ISO 8601)."""

    count: Count
    busy: Count = 0
    last_activity: Stamp | None = None


class Terminals(msgspec.Struct):
    """The number of terminals, and the time of their last activity (ISO 8601)."""

    count: Count
    last_activity: Stamp | None = None


class Gpu(msgspec.Struct):
    """One allocated GPU; `None` for values not measured."""

    uuid: Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9._/-]*$")]
    utilization_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    memory_used_mib: Mib | None = None
    memory_total_mib: Mib | None = None


class CheckoutReport(msgspec.Struct):
    """A step of a clone. `note` is the dotfiles script that ran, `detail` the output of a failure.

    `address` is the server's address if the workspace's network blocks it.
    """

    what: Literal["repository", "dotfiles"]
    state: Literal["cloning", "cloned", "kept", "installing", "installed", "failed"]
    code: Annotated[str, Meta(pattern=r"^[a-z_]{0,30}$")] = ""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}$")] = ""
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    note: Annotated[str, Meta(pattern=r"^[a-z/.]{0,30}$")] = ""
    detail: Annotated[str, Meta(max_length=2000)] = ""
    address: Annotated[str, Meta(pattern=r"^[0-9a-f.:]{0,45}$")] = ""


FIGURES: dict[str, Any] = {
    "kernels": Kernels | None,
    "terminals": Terminals | None,
    "connections": Count | None,
    "cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "rss_mib": Mib | None,
    "processes": Count | None,
    # Shell commands, in the foreground of terminals or in the background.
    "jobs": Count | None,
    # CPU time, and bytes read and written, since the start: by commands, and by kernels with their children.
    "jobs_cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "jobs_io_bytes": Annotated[int, Meta(ge=0, le=2**62)] | None,
    "kernels_cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "kernels_io_bytes": Annotated[int, Meta(ge=0, le=2**62)] | None,
    # Commands that listen on TCP ports and have no connection.
    "jobs_unused_servers": Count | None,
    # CPU time since the start of monitoring programs, such as top, and of VS Code's own processes.
    "monitors_cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "editor_cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    # When a person has last saved something in JupyterLab or VS Code.
    "edited_at": Stamp | None,
    "gpus": Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] | None,
    # Seconds without an answer from the GPU driver; null if it answers or there are no GPUs.
    "gpus_stale_s": Whole | None,
    # Bytes through the gateway since the start, in both directions.
    "traffic_bytes": Annotated[int, Meta(ge=0, le=2**62)] | None,
    # Rates per second over the last 10 minutes, by names that the job chooses.
    "progress": Annotated[dict[CountName, Rate], Meta(max_length=MAX_COUNTS)] | None,
}
"""Figures of a heartbeat and their types."""
LEFT_OUT = frozenset({"traffic_bytes", "progress"})
"""Optional figures: if the agent does not send them, they are omitted instead of null."""

_logged: OrderedDict[UUID, float] = OrderedDict()


class BadReport(ValueError):
    """A report is invalid. The message explains why."""


def parse_report(raw: bytes) -> dict[str, Any]:
    """Return the object in a report. Raises `BadReport`."""
    try:
        body = parse_json(raw or b"{}", strict=False)
    except InvalidJson as error:
        raise BadReport(str(error)) from error
    if not isinstance(body, dict):
        raise BadReport("it is not an object")
    return body


def endpoint_of(body: dict[str, Any]) -> str:
    """Return the endpoint of the app, or an empty string. Raises `BadReport`."""
    endpoint = body.get("endpoint", "")
    if (
        not isinstance(endpoint, str)
        or len(endpoint) > MAX_ENDPOINT
        or (endpoint and host_and_port(endpoint) is None and not socket_name(endpoint))
    ):
        raise BadReport("endpoint is neither an http URL of a host and port nor a socket of a node")
    return endpoint


def parse_exit(body: dict[str, Any]) -> tuple[int, str]:
    """Return the exit code and the last log lines of an ended app. Raises `BadReport`."""
    code, tail = body.get("exit_code"), body.get("log_tail")
    if code is None:
        code = 0
    if not isinstance(code, int) or isinstance(code, bool) or abs(code) > INT32:
        raise BadReport("exit_code is not a whole number of 32 bits")
    if not isinstance(tail, str | None):
        raise BadReport("log_tail is not a text")
    return code, strip_nul(tail or "")[-MAX_LOG_TAIL:]


def checkout_of(body: dict[str, Any]) -> CheckoutReport:
    """Return a step of a clone. Raises `BadReport`."""
    try:
        checkout = msgspec.convert(body, CheckoutReport)
    except msgspec.ValidationError as error:
        raise BadReport(str(error)) from error
    checkout.detail = strip_nul(checkout.detail)
    return checkout


def activity_of(body: dict[str, Any], *, workspace_id: UUID) -> dict[str, Any]:
    """Return all `FIGURES` of a heartbeat, except missing ones in `LEFT_OUT`. Raises `BadReport`."""
    activity = body.get("activity") or {}
    if not isinstance(activity, dict):
        raise BadReport("activity is not an object")
    figures: dict[str, Any] = {}
    refused = []
    for name, kind in FIGURES.items():
        if name in LEFT_OUT and name not in activity:
            continue
        try:
            figure = msgspec.convert(activity.get(name), kind)
            stamp = figure if name == "edited_at" else getattr(figure, "last_activity", None)
            if stamp is not None:
                datetime.fromisoformat(stamp)
        except ValueError:
            figure = None
            refused.append(name)
        figures[name] = msgspec.to_builtins(figure)
    if refused and _may_log(workspace_id):
        log.warning("ignored invalid figures of workspace %s: %s", workspace_id, ", ".join(refused))
    return figures


def _may_log(workspace_id: UUID) -> bool:
    now = time.monotonic()
    last = _logged.pop(workspace_id, None)
    due = last is None or now - last >= LOG_EVERY_S
    _logged[workspace_id] = now if last is None or due else last
    if len(_logged) > _LOGGED_MAX:
        _logged.popitem(last=False)
    return due
