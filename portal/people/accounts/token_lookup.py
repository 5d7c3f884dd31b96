"""Finds the owner of a token, for each request of a program, with one statement and no wait.

What a token's rows were made into is kept in the process; what the rows hold is read each time. So whatever
has been committed anywhere, a revocation, a deletion, a user who is no longer active or has lost a right,
holds for the next request of every process, and nothing has to be told to forget.
"""

from __future__ import annotations

import copy
import hashlib
from functools import lru_cache
from typing import Any

from django.db import connection
from django.utils import timezone

from portal.people.accounts import token_uses
from portal.people.accounts.models import ApiToken, User

TOKEN_PREFIX = "berth_"  # noqa: S105  (the public beginning of every token)
_MAX_KEPT = 2048

# A token's digest → the row as the database gave it, and the token made of it with its user.
_kept: dict[str, tuple[tuple[Any, ...], ApiToken]] = {}


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def user_of_token(secret: str) -> tuple[User, ApiToken] | None:
    """The owner of a valid token, or None: unknown, revoked, expired, or the user is not active.

    The two are the caller's own copies. That the token was used is noted (`token_uses`).
    """
    if not secret.startswith(TOKEN_PREFIX):
        return None
    token = _token(digest_of(secret))
    if token is None or token.revoked_at is not None or not token.owner.is_active:
        return None
    now = timezone.now()
    ends_at = token.ends_at
    if ends_at is not None and ends_at <= now:
        return None
    token_uses.note(token, now)
    return token.owner, token


def _token(digest: str) -> ApiToken | None:
    """The token and its user as the database has them now."""
    with connection.cursor() as cursor:
        cursor.execute(_statement(connection.vendor), [digest])
        row = cursor.fetchone()
    if row is None:
        _kept.pop(digest, None)
        return None
    known = _kept.get(digest)
    if known is None or known[0] != row:
        token = _rows(digest).first()
        if token is None:
            return None
        if len(_kept) >= _MAX_KEPT:
            _kept.clear()
        _kept[digest] = known = (row, token)
    token = copy.copy(known[1])
    token.owner = copy.copy(known[1].owner)
    return token


def _rows(digest: str) -> Any:
    return ApiToken.objects.select_related("owner").filter(digest=digest).order_by()


@lru_cache(maxsize=4)
def _statement(_vendor: str) -> str:
    """The SQL of `_rows`. To make it each time would take longer than to run it."""
    sql: str = _rows("").query.sql_with_params()[0]
    return sql
