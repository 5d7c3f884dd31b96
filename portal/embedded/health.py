"""Health of each part of the portal. Every check has a timeout of about one second."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from portal.common import storage
from portal.common.reasons.codes import CommonCode
from portal.embedded import database_reserve
from portal.embedded.proxy import HEALTH_HOST
from portal.fleet.machines import redis_users
from portal.fleet.machines.redis_guard import PAUSE_S
from portal.people.accounts.models import FailureWindow
from provisioning.heartbeat import HEARTBEAT_LATE_S, read
from provisioning.service.probes import http_status, redis_client

ROLES = {
    "control": ("control worker", "See control.log. The supervisor restarts it automatically."),
    "node": ("node worker", "See node.log on the node. Workspaces keep running."),
    "beat": ("beat", "See beat.log. Periodic tasks wait until it runs."),
}


@dataclass(frozen=True, slots=True)
class ComponentHealth:
    """Health of one part: whether it is healthy, the observation, and the fix."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def check() -> list[ComponentHealth]:
    """Check every part in order of dependency."""
    store, heartbeats = _store()
    parts = [_database(), store]
    front_door = _front_door()
    if front_door is not None:
        parts.append(front_door)
    gateway = _gateway()
    if gateway is not None:
        parts.append(gateway)
    return parts + [_nodes(heartbeats) if role == "node" else _role(role, heartbeats) for role in ROLES]


def _database() -> ComponentHealth:
    started = time.monotonic()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except (DatabaseError, OSError) as error:
        return ComponentHealth(
            "database",
            ok=False,
            detail=f"{connection.vendor} does not answer ({type(error).__name__})",
            fix="Check DATABASE_URL, the database server and the disk.",
        )
    answered = f"{connection.vendor}, {_milliseconds(started)}"
    left = _reserve_left()
    if left is not None:
        detail = f"{answered}, but its disk is full: {left / 2**20:.1f} MiB of its reserve left"
        return ComponentHealth("database", ok=False, detail=detail, fix="Free space on its disk.")
    unwritten = _write_problem()
    if unwritten:
        fix = LOCKED_FIX if unwritten == LOCKED else WRITE_FIX
        return ComponentHealth("database", ok=False, detail=f"{answered}, but {unwritten}", fix=fix)
    return ComponentHealth("database", ok=True, detail=answered)


def _reserve_left() -> int | None:
    if connection.vendor != "sqlite":
        return None
    with connection.cursor() as cursor:
        return database_reserve.remaining_bytes_when_full(
            _sqlite_file(), lambda query: cursor.execute(query).fetchone()[0]
        )


def _sqlite_file() -> Path:
    return Path(str(connection.settings_dict["NAME"]))


WRITE_EVERY_S = 5.0
WRITE_WITHIN_MS = 1000
WRITE_FIX = "Free space on its disk, or make it writable. Until then the portal is read-only."
LOCKED_FIX = "Another program holds a lock on the database. End it. Until then changes fail."
LOCKED = f"a write took longer than {WRITE_WITHIN_MS / 1000:.0f} s"
_write_lock = threading.Lock()
_written: tuple[float, str] = (float("-inf"), "")


def _write_problem() -> str:
    """Return why a small write to the database fails; empty if it succeeds. Rate-limited."""
    global _written
    with _write_lock:
        at, problem = _written
        if time.monotonic() - at >= WRITE_EVERY_S:
            problem = _try_to_write() or _try_to_grow()
            _written = (time.monotonic(), problem)
    return problem


def _try_to_write() -> str:
    try:
        with _short_write_timeout(), transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL statement_timeout = {WRITE_WITHIN_MS}")
            FailureWindow.objects.update_or_create(
                key="health", defaults={"began_at": timezone.now(), "count": 0}
            )
    except DatabaseError as error:
        if _timed_out(error):
            return LOCKED
        return UNWRITTEN.get(str(storage.write_problem(error)), "it is not writable")
    return ""


def _timed_out(error: DatabaseError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) == "57014"


def _try_to_grow() -> str:
    """Return why SQLite's files cannot grow, or an empty string. Small writes use the reserve.

    Free disk space does not show quotas or a lack of inodes.
    """
    if connection.vendor != "sqlite":
        return ""
    try:
        with tempfile.TemporaryFile(dir=_sqlite_file().parent) as file:
            os.posix_fallocate(file.fileno(), 0, database_reserve.FULL_BELOW_BYTES)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return UNWRITTEN[CommonCode.STORAGE_FULL]
        return "its folder is not writable"
    return ""


UNWRITTEN: dict[str, str] = {
    CommonCode.STORAGE_FULL: "its disk is full",
    CommonCode.STORAGE_READ_ONLY: "it is read-only",
    CommonCode.STORAGE_BUSY: LOCKED,
}


@contextmanager
def _short_write_timeout() -> Iterator[None]:
    """Shorten SQLite's wait for other writers, because a health check must be fast."""
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        before = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        cursor.execute(f"PRAGMA busy_timeout = {WRITE_WITHIN_MS}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {int(before)}")


WRITTEN_KEY = "berth:health"
FULL_SHARE = 0.9
BLOCKED_FIX = "Workspaces keep running. If it happens again, revoke the node."
FULL_FIX = "See control.log for the node that filled it. Users stay signed in."


def _store() -> tuple[ComponentHealth, dict[str, float] | None]:
    started = time.monotonic()
    try:
        with redis_client(settings.BERTH_REDIS_URL) as client:
            heartbeats = read(client)
            memory = client.info("memory")
            client.set(WRITTEN_KEY, 1, ex=60)
    except redis.OutOfMemoryError:
        used, limit = memory["used_memory"], memory["maxmemory"]
        return ComponentHealth("redis", ok=False, detail=_full(used, limit), fix=FULL_FIX), heartbeats
    except (redis.RedisError, OSError) as error:
        return (
            ComponentHealth(
                "redis",
                ok=False,
                detail=f"does not answer ({type(error).__name__})",
                fix="See redis.log. No work is lost; services reconnect automatically.",
            ),
            None,
        )
    used, limit = memory["used_memory"], memory["maxmemory"]
    if limit and used >= limit * FULL_SHARE:
        return ComponentHealth("redis", ok=False, detail=_full(used, limit), fix=FULL_FIX), heartbeats
    return ComponentHealth("redis", ok=True, detail=_milliseconds(started)), heartbeats


def _full(used: int, limit: int) -> str:
    return f"full: {used / 2**20:.0f} of {limit / 2**20:.0f} MiB used"


def _front_door() -> ComponentHealth | None:
    """Check the front door if `BERTH_FRONT_DOOR_URL` is set, as in the embedded mode."""
    url = os.environ.get("BERTH_FRONT_DOOR_URL")
    if not url:
        return None
    parts = urlsplit(url)
    started = time.monotonic()
    status = http_status(parts.port or 80, "/", host=HEALTH_HOST, address=parts.hostname or "127.0.0.1")
    if status != 200:
        detail = f"answered {status}" if status else "does not answer"
        return ComponentHealth("front door", ok=False, detail=detail, fix="See front-door.log.")
    return ComponentHealth("front door", ok=True, detail=_milliseconds(started))


def _gateway() -> ComponentHealth | None:
    """Check the process for forward-auth and streams if `BERTH_GATEWAY_URL` is set."""
    url = os.environ.get("BERTH_GATEWAY_URL")
    if not url:
        return None
    parts = urlsplit(url)
    started = time.monotonic()
    status = http_status(parts.port or 80, "/healthz/live", address=parts.hostname or "127.0.0.1")
    if status != 200:
        detail = f"answered {status}" if status else "does not answer"
        fix = "See gateway.log. Workspaces cannot be opened until it runs."
        return ComponentHealth("gateway", ok=False, detail=detail, fix=fix)
    return ComponentHealth("gateway", ok=True, detail=_milliseconds(started))


def _role(role: str, heartbeats: dict[str, float] | None) -> ComponentHealth:
    label, fix = ROLES[role]
    if heartbeats is None:
        return ComponentHealth(role, ok=False, detail="unknown while Redis is down", fix="See redis.")
    now = time.time()
    ages = {
        name.partition("@")[2]: now - at for name, at in heartbeats.items() if name.startswith(f"{role}@")
    }
    alive = sorted(host for host, age in ages.items() if age <= HEARTBEAT_LATE_S)
    late = sorted(f"{host} silent for {age:.0f} s" for host, age in ages.items() if age > HEARTBEAT_LATE_S)
    if not alive:
        return ComponentHealth(role, ok=False, detail="; ".join(late) or f"no {label} has connected", fix=fix)
    return ComponentHealth(role, ok=True, detail="; ".join([f"{len(alive)} alive", *late]))


def _nodes(heartbeats: dict[str, float] | None) -> ComponentHealth:
    """Return the health of node workers, and which nodes are blocked because they filled Redis."""
    health = _role("node", heartbeats)
    if health.ok or heartbeats is None:
        return health
    try:
        with redis_client(settings.BERTH_REDIS_URL) as client:
            blocked = ", ".join(sorted(redis_users.refused_nodes(client)))
    except (redis.RedisError, OSError):
        return health
    if not blocked:
        return health
    detail = f"{blocked}: blocked for {PAUSE_S} s after filling Redis"
    return ComponentHealth("node", ok=False, detail=detail, fix=BLOCKED_FIX)


def _milliseconds(started: float) -> str:
    return f"{(time.monotonic() - started) * 1000:.1f} ms"
