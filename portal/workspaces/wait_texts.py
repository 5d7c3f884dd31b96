"""Texts about a workspace that waits at its engine: on its page, in lists, and in the queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _

from portal.workspaces import engine_queue
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class WaitText:
    """A wait in words. `position` and `reason` are empty if unknown. `starts_at` is the engine's estimate."""

    title: str
    place: int | None
    position: str
    reason: str
    starts_at: datetime | None
    seen_at: datetime

    @property
    def details(self) -> str:
        """Position and reason on one line; empty if both are unknown."""
        return " · ".join(part for part in (self.position, self.reason) if part)


def wait_text(workspace: Workspace) -> WaitText | None:
    """Return the wait of a workspace in words, or None if it does not wait at its engine."""
    wait = engine_queue.current_wait(workspace, timezone.now())
    if wait is None or workspace.pool is None:
        return None
    return WaitText(
        title=_("Waits at %(pool)s") % {"pool": workspace.pool.name},
        place=wait.position,
        position=_("position %(place)d") % {"place": wait.position} if wait.position else "",
        reason=reason_text(wait.code, wait.message),
        starts_at=wait.starts_at,
        seen_at=wait.seen_at,
    )


def reason_text(code: str, message: str) -> str:
    """Return an engine's reason: “Priority: Earlier jobs wait too.” Without a message, only the code."""
    return ": ".join(part for part in (code[:1].upper() + code[1:], message) if part)
