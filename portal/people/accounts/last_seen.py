"""Records that a session is in use, at most once per `PAUSE`, without changing its data."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from threading import Lock

from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal.people.accounts.models import UserSession

PAUSE = timedelta(minutes=5)
MAX_KEPT = 10_000

log = logging.getLogger(__name__)

_last_recorded: OrderedDict[str, float] = OrderedDict()
_lock = Lock()


class LastSeenMiddleware:
    """Records use of the session. Background requests of an open page do not count."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        key = request.session.session_key
        by_itself = request.method == "GET" and getattr(request, "htmx", False)
        # Checked last, because it loads the session.
        if key and not by_itself and _is_due(key) and request.user.is_authenticated:
            note(request.session)
        return response


def note(session: SessionBase) -> None:
    """Update the last use and postpone the expiry. Ignores database errors."""
    now = timezone.now()
    key = session.session_key
    sessions = UserSession.objects.filter(key=key, last_seen_at__lt=now - PAUSE)
    try:
        if sessions.update(last_seen_at=now):
            rows = Session.objects.filter(session_key=key)
            rows.update(expire_date=session.get_expiry_date())
    except DatabaseError as error:
        # Full disk or read-only database: signed-in users still see the portal.
        log.warning("could not record session use: %s", error)


def _is_due(key: str) -> bool:
    """Return whether this process has not recorded the session within `PAUSE`, and mark it as recorded."""
    now = time.time()
    with _lock:
        if now - _last_recorded.get(key, 0) < PAUSE.total_seconds():
            return False
        _last_recorded[key] = now
        _last_recorded.move_to_end(key)
        while len(_last_recorded) > MAX_KEPT:
            _last_recorded.popitem(last=False)
    return True
