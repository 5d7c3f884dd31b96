"""Looks up the owner of a token, once per API request, with a single query.

Objects built from rows are cached in the process, but the rows are read each time. Committed changes, such as
revocation, deletion or deactivation, apply to the next request of every process without invalidation.
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
JOB_TOKEN_PREFIX = "berth_job_"  # noqa: S105  (of a CI job's token, so that clients know that it is renewable)
_MAX_CACHED = 2048

# Token digest → the raw row, and the token and user built from it.
_cache: dict[str, tuple[tuple[Any, ...], ApiToken]] = {}


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def find_valid_token(secret: str) -> tuple[User, ApiToken] | None:
    """Return the owner and token, or None if unknown, revoked, expired or of an inactive user.

    Both are copies for the caller. Records the use of the token (`token_uses`).
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


def expired_token(secret: str) -> ApiToken | None:
    """Return the token if it is invalid only because it has expired."""
    token = _token(digest_of(secret)) if secret.startswith(TOKEN_PREFIX) else None
    if token is None or token.revoked_at is not None or not token.owner.is_active:
        return None
    return token if token.ends_at is not None and token.ends_at <= timezone.now() else None


def _token(digest: str) -> ApiToken | None:
    """Return the stored token with its user, or None."""
    with connection.cursor() as cursor:
        cursor.execute(_statement(connection.vendor), [digest])
        row = cursor.fetchone()
    if row is None:
        _cache.pop(digest, None)
        return None
    cached = _cache.get(digest)
    if cached is None or cached[0] != row:
        token = _rows(digest).first()
        if token is None:
            return None
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[digest] = cached = (row, token)
    token = copy.copy(cached[1])
    token.owner = copy.copy(cached[1].owner)
    return token


def _rows(digest: str) -> Any:
    return ApiToken.objects.select_related("owner").filter(digest=digest).order_by()


@lru_cache(maxsize=4)
def _statement(_vendor: str) -> str:
    """Return the SQL of `_rows`, cached because compiling it takes longer than running it."""
    sql: str = _rows("").query.sql_with_params()[0]
    return sql
