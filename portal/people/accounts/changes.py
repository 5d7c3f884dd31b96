"""Invalidates the gateway's cache of tokens.

`token_lookup` always reads the database. The gateway trusts a token for a moment without a lookup, and clears
its cache when the revision in Redis changes.
"""

from __future__ import annotations

import logging
from typing import Any

import redis
from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from portal.common import passes
from portal.common.events import live
from portal.people.accounts.models import ApiToken, User

REVISION_KEY = "berth:acc:revision"
_LAST_LOGIN = frozenset({"last_login"})

log = logging.getLogger(__name__)


def announce() -> None:
    """Invalidate the cache on commit. Without Redis the gateway admits no users."""
    transaction.on_commit(_announce)


def _announce() -> None:
    try:
        live.connection().incr(REVISION_KEY)
    except redis.RedisError as error:
        log.warning("could not announce account change: %s", error)
    passes.pause(settings.BERTH_PASSES_DIR, settings.BERTH_GATEWAY_SECRET)


def connect() -> None:
    """Connect signals for changes of users and deletions. Called once when Django is ready."""
    post_save.connect(_user_saved, sender=User, dispatch_uid="accounts.changes")
    post_delete.connect(_deleted, sender=User, dispatch_uid="accounts.changes")
    post_delete.connect(_deleted, sender=ApiToken, dispatch_uid="accounts.changes")


def _user_saved(*, created: bool, update_fields: frozenset[str] | None = None, **_: Any) -> None:
    # Signing in does not change an account, and a new account has no tokens.
    if not created and update_fields != _LAST_LOGIN:
        announce()


def _deleted(**_: Any) -> None:
    announce()
