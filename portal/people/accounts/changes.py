"""Tells the gateway that what it remembers of tokens may no longer be so.

Whoever looks tokens up in the database (`token_lookup`) needs no word. The gateway believes a token for a
moment without looking, and forgets all of them when the revision in Redis changes.
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
    """Tell it once the transaction has held. Without Redis the gateway lets nobody in."""
    transaction.on_commit(_announce)


def _announce() -> None:
    try:
        live.connection().incr(REVISION_KEY)
    except redis.RedisError as error:
        log.warning("a change of accounts was not announced: %s", error)
    passes.pause(settings.BERTH_PASSES_DIR, settings.BERTH_GATEWAY_SECRET)


def connect() -> None:
    """Announce each change of a user and each deletion, whoever makes them; once, when Django is ready."""
    post_save.connect(_user_saved, sender=User, dispatch_uid="accounts.changes")
    post_delete.connect(_deleted, sender=User, dispatch_uid="accounts.changes")
    post_delete.connect(_deleted, sender=ApiToken, dispatch_uid="accounts.changes")


def _user_saved(*, created: bool, update_fields: frozenset[str] | None = None, **_: Any) -> None:
    # Signing in is no change of an account, and nobody has a token before there is an account.
    if not created and update_fields != _LAST_LOGIN:
        announce()


def _deleted(**_: Any) -> None:
    announce()
