"""What agents may report, read within bounds: an agent is its user's own process and may say anything.

A report that is no JSON object, or whose text the portal acts upon does not hold, is refused as a whole. Of a
heartbeat's figures each one that does not hold is left out alone: null, as what was not measured. What nobody
knows is not kept.
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
"""One workspace's figures that do not hold are in the log this often, however often they come."""
_LOGGED_MAX = 1024

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Mib = Annotated[int, Meta(ge=0, le=INT32)]
Whole = Annotated[int, Meta(ge=0, le=INT32)]
Stamp = Annotated[str, Meta(max_length=40)]
MAX_COUNTS = 4
CountName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,29}\Z")]
Rate = Annotated[float, Meta(gt=0, le=1e15)]


class Kernels(msgspec.Struct):
    """Kernels, and when one of them did something last (ISO 8601)."""

    count: Count
    busy: Count = 0
    last_activity: Stamp | None = None


class Terminals(msgspec.Struct):
    """Terminals, likewise."""

    count: Count
    last_activity: Stamp | None = None


class Gpu(msgspec.Struct):
    """One granted GPU; None for what was not measured."""

    uuid: Annotated[str, Meta(max_length=80, pattern=r"^[A-Za-z0-9._/-]*$")]
    utilization_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    memory_used_mib: Mib | None = None
    memory_total_mib: Mib | None = None


class CheckoutReport(msgspec.Struct):
    """A step of a clone. `note` is the script of dotfiles that ran, `detail` what was said when it failed."""

    what: Literal["repository", "dotfiles"]
    state: Literal["cloning", "cloned", "kept", "installing", "installed", "failed"]
    code: Annotated[str, Meta(pattern=r"^[a-z_]{0,30}$")] = ""
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}$")] = ""
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    note: Annotated[str, Meta(pattern=r"^[a-z/.]{0,30}$")] = ""
    detail: Annotated[str, Meta(max_length=2000)] = ""


FIGURES: dict[str, Any] = {
    "kernels": Kernels | None,
    "terminals": Terminals | None,
    "connections": Count | None,
    "cpu_seconds": Annotated[float, Meta(ge=0, le=1e12)] | None,
    "rss_mib": Mib | None,
    "processes": Count | None,
    # Commands of shells, in the foreground of terminals or left to run behind.
    "jobs": Count | None,
    "gpus": Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] | None,
    # For how long their driver has not answered; null when it answers, or there are none.
    "gpus_stale_s": Whole | None,
    # What has come and gone through the gateway since the start, in both directions.
    "traffic_bytes": Annotated[int, Meta(ge=0, le=2**62)] | None,
    # By a name that the job has chosen, how much of it was done a second within the last ten minutes.
    "progress": Annotated[dict[CountName, Rate], Meta(max_length=MAX_COUNTS)] | None,
}
"""The figures of a heartbeat and what each may be."""
LEFT_OUT = frozenset({"traffic_bytes", "progress"})
"""Figures that an agent which can never measure them, or was never told, does not send; they are not kept as
null then."""

_logged: OrderedDict[UUID, float] = OrderedDict()


class BadReport(ValueError):
    """The report is not taken; the text says why."""


def body_of(raw: bytes) -> dict[str, Any]:
    """The object that a report is. Raises `BadReport`."""
    try:
        found = parse_json(raw or b"{}", strict=False)
    except InvalidJson as error:
        raise BadReport(str(error)) from error
    if not isinstance(found, dict):
        raise BadReport("it is not an object")
    return found


def endpoint_of(body: dict[str, Any]) -> str:
    """Where the app answers, or an empty string. Raises `BadReport`."""
    endpoint = body.get("endpoint", "")
    if (
        not isinstance(endpoint, str)
        or len(endpoint) > MAX_ENDPOINT
        or (endpoint and host_and_port(endpoint) is None and not socket_name(endpoint))
    ):
        raise BadReport("endpoint is neither an http URL of a host and port nor a socket of a node")
    return endpoint


def ending_of(body: dict[str, Any]) -> tuple[int, str]:
    """The exit code and the last lines of an app that has ended. Raises `BadReport`."""
    code, tail = body.get("exit_code"), body.get("log_tail")
    if code is None:
        code = 0
    if not isinstance(code, int) or isinstance(code, bool) or abs(code) > INT32:
        raise BadReport("exit_code is not a whole number of 32 bits")
    if not isinstance(tail, str | None):
        raise BadReport("log_tail is not a text")
    return code, strip_nul(tail or "")[-MAX_LOG_TAIL:]


def checkout_of(body: dict[str, Any]) -> CheckoutReport:
    """A step of a clone. Raises `BadReport`."""
    try:
        found = msgspec.convert(body, CheckoutReport)
    except msgspec.ValidationError as error:
        raise BadReport(str(error)) from error
    found.detail = strip_nul(found.detail)
    return found


def activity_of(body: dict[str, Any], *, workspace_id: UUID) -> dict[str, Any]:
    """The figures of a heartbeat, every one of `FIGURES` but for `LEFT_OUT`. Raises `BadReport`."""
    given = body.get("activity") or {}
    if not isinstance(given, dict):
        raise BadReport("activity is not an object")
    kept: dict[str, Any] = {}
    refused = []
    for name, kind in FIGURES.items():
        if name in LEFT_OUT and name not in given:
            continue
        try:
            figure = msgspec.convert(given.get(name), kind)
            stamp = getattr(figure, "last_activity", None)
            if stamp is not None:
                datetime.fromisoformat(stamp)
        except ValueError:
            figure = None
            refused.append(name)
        kept[name] = msgspec.to_builtins(figure)
    if refused and _may_log(workspace_id):
        log.warning(
            "figures of workspace %s do not hold and are left out: %s", workspace_id, ", ".join(refused)
        )
    return kept


def _may_log(workspace_id: UUID) -> bool:
    now = time.monotonic()
    last = _logged.pop(workspace_id, None)
    due = last is None or now - last >= LOG_EVERY_S
    _logged[workspace_id] = now if last is None or due else last
    if len(_logged) > _LOGGED_MAX:
        _logged.popitem(last=False)
    return due
