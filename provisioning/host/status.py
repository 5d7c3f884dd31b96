"""`berth node status`: whether this node is connected and healthy, as text and as JSON."""

from __future__ import annotations

import datetime as dt
import os
import time
from dataclasses import dataclass
from uuid import UUID

import redis

from provisioning import redis_client
from provisioning.drivers.local import processes, state, suspending
from provisioning.host import keys, membership, membership_watch, programs, unit
from provisioning.host.door import CLOCK_MAX_OFF_S
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import Membership
from provisioning.host.rotation import is_due
from provisioning.service import instance_lock
from provisioning.service import processes as service_processes
from provisioning.service.console import Problem
from provisioning.service.notebook import NAME as NOTEBOOK
from provisioning.version import VERSION

EXIT_WELL, EXIT_TROUBLE, EXIT_NOT_RUNNING = 0, 1, 3
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class StatusResult:
    """One result: `name`, whether it is good, and text for people."""

    name: str
    good: bool
    text: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of the node `node` of `pool`; `exit_code` summarizes it."""

    node: str
    pool: str
    portal: str
    exit_code: int
    facts: tuple[StatusResult, ...]


def read(folder: NodeFolder) -> NodeStatus:
    """Return the current state of this node. Raises `Problem` if the machine is not a node."""
    identity = membership.load(folder)
    runs = instance_lock.is_held(folder.run)
    facts = (
        *_machine(identity),
        _services(folder, runs=runs),
        *_connection(folder, identity),
        *_cut_off(folder),
        _certificate(identity),
        _version(identity),
        _environment(folder),
        _workspaces(folder),
    )
    code = EXIT_WELL if all(fact.good for fact in facts) else EXIT_TROUBLE
    answer = identity.answer
    return NodeStatus(answer.node, answer.pool, answer.portal_url, code if runs else EXIT_NOT_RUNNING, facts)


def services_run(folder: NodeFolder) -> bool:
    """Return whether worker and gateway have answered since their start."""
    try:
        return instance_lock.is_held(folder.run) and _states(folder) == {"running"}
    except Problem:
        return False


def _states(folder: NodeFolder) -> set[str]:
    return {str(row["state"]) for row in instance_lock.read_state(folder.run).get("services", [])}


def _machine(identity: Membership) -> tuple[StatusResult, ...]:
    try:
        membership.check_machine(identity)
    except Problem as problem:
        return (StatusResult("machine", False, str(problem)),)
    return ()


def _services(folder: NodeFolder, *, runs: bool) -> StatusResult:
    if not runs:
        return StatusResult("services", False, f"not running. Start: {unit.start_command(folder)}")
    rows = instance_lock.read_state(folder.run).get("services", [])
    summary = ", ".join(
        f"{row['name']} {row['state']}" + (f" ({row['detail']})" if row["detail"] else "") for row in rows
    )
    return StatusResult("services", _states(folder) == {"running"}, summary or "starting")


def _connection(folder: NodeFolder, identity: Membership) -> tuple[StatusResult, ...]:
    began = time.time()
    access = identity.answer.redis
    try:
        with redis_client.client(
            identity.redis_url(folder), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        ) as client:
            client.ping()
            took_ms = (time.time() - began) * 1000
            sent_at = time.time()
            seconds, micros = client.time()
            off_s = (sent_at + time.time()) / 2 - (seconds + micros / 1e6)
    except (redis.AuthenticationError, redis.exceptions.AuthorizationError):
        detail = (
            "the portal rejects this node: it was revoked, or a copy of it rotated the keys. "
            "Contact an operator. To join again: berth node leave --forget, then join with a new token"
        )
        return (StatusResult("connection", False, detail),)
    except (redis.RedisError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        return (StatusResult("connection", False, f"{access.host}:{access.port} does not answer ({reason})"),)
    synchronized = abs(off_s) <= CLOCK_MAX_OFF_S
    clock = f"{abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} the portal's"
    return (
        StatusResult("connection", True, f"{access.host}, {took_ms:.0f} ms"),
        StatusResult(
            "clock",
            synchronized,
            clock + ("" if synchronized else ". Set it: timedatectl set-ntp true, or chrony"),
        ),
    )


def _cut_off(folder: NodeFolder) -> tuple[StatusResult, ...]:
    """Return when workspaces end after loss of contact, as determined by the node's services."""
    cut_off = membership_watch.load_cut_off(folder)
    if cut_off is None or cut_off.boot != service_processes.boot_id():
        return ()
    limits = membership_watch.graces({**os.environ, **programs.settings(folder)})
    return (
        StatusResult(
            "workspaces end", False, membership_watch.describe(cut_off, limits, now_s=time.monotonic())
        ),
    )


def _certificate(identity: Membership) -> StatusResult:
    try:
        end, due = keys.validity(identity.answer.certificate)[1], is_due(identity)
    except ValueError as error:
        return StatusResult("certificate", False, f"cannot be read ({error})")
    days = (end - dt.datetime.now(dt.UTC)).total_seconds() / 86400
    if days < 0:
        return StatusResult(
            "certificate",
            False,
            f"expired on {end.date()}. Join again: berth node leave --forget, then with a new token",
        )
    detail = f"until {end.date()}, {days:.0f} days"
    late = ". Rotation is overdue: berth node rotate" if due else ""
    return StatusResult("certificate", not due, detail + late)


def _version(identity: Membership) -> StatusResult:
    joined = "" if identity.version == VERSION else f", joined with {identity.version}"
    return StatusResult("version", True, VERSION + joined)


def _environment(folder: NodeFolder) -> StatusResult:
    if (folder.environments / NOTEBOOK / "bin" / "python").exists():
        return StatusResult("notebooks", True, str((folder.environments / NOTEBOOK).resolve()))
    return StatusResult("notebooks", False, "not installed. Install: berth node environment")


def _workspaces(folder: NodeFolder) -> StatusResult:
    names = {
        owned.workspace
        for owned in processes.scan(folder.driver_instance, spares=state.claimed(folder.local))
        if owned.workspace
    }
    summary = f"{len(names)} running"
    suspended = [name for name in sorted(names) if suspending.load(state.WorkspaceDir(folder.local, name))]
    if suspended:
        ids = ", ".join(str(UUID(name.removeprefix("ws-"))) for name in suspended)
        summary += f"; suspended, until berth node resume: {ids}"
    return StatusResult("workspaces", True, summary)
