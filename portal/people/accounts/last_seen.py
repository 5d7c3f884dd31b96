"""Notes that a session is in use: at most once in some minutes, and without touching what it holds."""

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

_noted: OrderedDict[str, float] = OrderedDict()
_lock = Lock()


class LastSeenMiddleware:
    """Note what a user opens. Parts that an open page fetches by itself are no use of the session."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        key = request.session.session_key
        by_itself = request.method == "GET" and getattr(request, "htmx", False)
        # Asked last: it is what loads the session.
        if key and not by_itself and _is_due(key) and request.user.is_authenticated:
            note(request.session)
        return response


def note(session: SessionBase) -> None:
    """The session is in use now: the list says so, and it ends later. Never raises for the database."""
    now = timezone.now()
    key = session.session_key
    seen = UserSession.objects.filter(key=key, last_seen_at__lt=now - PAUSE)
    try:
        if seen.update(last_seen_at=now):
            rows = Session.objects.filter(session_key=key)
            rows.update(expire_date=session.get_expiry_date())
    except DatabaseError as error:
        # A disk that is full, or a database that only reads: whoever is signed in still sees the portal.
        log.warning("that a session is in use was not noted: %s", error)


def _is_due(key: str) -> bool:
    """Whether this process has not noted the session for a while; remembers that it does now."""
    now = time.time()
    with _lock:
        if now - _noted.get(key, 0) < PAUSE.total_seconds():
            return False
        _noted[key] = now
        _noted.move_to_end(key)
        while len(_noted) > MAX_KEPT:
            _noted.popitem(last=False)
    return True
