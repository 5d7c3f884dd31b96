"""Distinguishes unavailable storage from bugs of the portal."""

from __future__ import annotations

import sqlite3

from django.db import DatabaseError

from portal.common.errors import Unavailable
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

# PostgreSQL's SQLSTATEs: disk full, out of memory, read-only transaction.
_STATES = {
    "53100": CommonCode.STORAGE_FULL,
    "53200": CommonCode.STORAGE_FAILS,
    "25006": CommonCode.STORAGE_READ_ONLY,
    "58030": CommonCode.STORAGE_FAILS,
}
_SQLITE = {
    sqlite3.SQLITE_FULL: CommonCode.STORAGE_FULL,
    sqlite3.SQLITE_READONLY: CommonCode.STORAGE_READ_ONLY,
    sqlite3.SQLITE_IOERR: CommonCode.STORAGE_FAILS,
    sqlite3.SQLITE_CANTOPEN: CommonCode.STORAGE_FAILS,
    sqlite3.SQLITE_BUSY: CommonCode.STORAGE_BUSY,
    sqlite3.SQLITE_LOCKED: CommonCode.STORAGE_BUSY,
}


def write_problem(error: BaseException) -> CommonCode | None:
    """Return why the database rejects writes, or None for other errors."""
    if not isinstance(error, DatabaseError):
        return None
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF)
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return _STATES.get(state)
    return None


def unavailable_error(error: BaseException) -> Unavailable | None:
    """Return the error to raise if the database is unavailable, or None for other errors."""
    code = write_problem(error)
    return Unavailable(Reason(code)) if code is not None else None
