"""Database sessions with an idle timeout and a maximum lifetime.

The row's `expire_date` is the end of the session. `portal.people.accounts.last_seen` postpones it while the
session is used. All processes with database access honour it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

# Session keys: start, and last proof of identity, in seconds since the epoch.
BEGAN_AT = "berth_began_at"
PROVEN_AT = "berth_proven_at"


class SessionStore(DatabaseStore):
    """Django's database store with both limits."""

    def get_expiry_date(self, **kwargs: Any) -> datetime:
        """Return the end of the session if it is not used again."""
        now = timezone.now()
        began = datetime.fromtimestamp(self.get(BEGAN_AT, now.timestamp()), tz=now.tzinfo)
        idle = now + timedelta(hours=settings.BERTH_SESSION_IDLE_HOURS)
        return min(idle, began + timedelta(hours=settings.BERTH_SESSION_MAX_HOURS))
