"""Sessions in the database, which end when they are idle, and some day in any case.

The row's `expire_date` says when; `portal.people.accounts.last_seen` moves it while the session is used.
Every process that knows the database finds a session ended that is over.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

# In a session: when it began, and when its user last proved who they are, in seconds since 1970.
BEGAN_AT = "berth_began_at"
PROVEN_AT = "berth_proven_at"


class SessionStore(DatabaseStore):
    """Django's, with both limits."""

    def get_expiry_date(self, **kwargs: Any) -> datetime:
        """When the session is over if it is not used from now on."""
        now = timezone.now()
        began = datetime.fromtimestamp(self.get(BEGAN_AT, now.timestamp()), tz=now.tzinfo)
        idle = now + timedelta(hours=settings.BERTH_SESSION_IDLE_HOURS)
        return min(idle, began + timedelta(hours=settings.BERTH_SESSION_MAX_HOURS))
