"""What pages show of teams to join and of requests to join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import Role, User
from portal.join_requests import policies, selectors
from portal.join_requests.models import JoinRequest, JoinStatus

MAX_ON_HOME = 20

LOOKS: dict[str, tuple[str | Promise, str, str]] = {
    JoinStatus.OPEN: (_("Waits for an owner"), "hourglass", "wait"),
    JoinStatus.APPROVED: (_("Approved"), "circle-check", "ok"),
    JoinStatus.DENIED: (_("Denied"), "circle-x", "bad"),
    JoinStatus.CANCELLED: (_("Cancelled"), "arrow-back-up", ""),
    JoinStatus.EXPIRED: (_("Expired"), "clock", ""),
}
"""Word, icon and tone of each status."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A request as a page shows it, with what its reader may do."""

    request: JoinRequest
    may_decide: bool
    may_cancel: bool

    @property
    def look(self) -> tuple[str | Promise, str, str]:
        return LOOKS[self.request.status]


def shown(actor: User, request: JoinRequest) -> Shown:
    """The request as the actor may see it."""
    is_open = request.status == JoinStatus.OPEN
    return Shown(
        request,
        may_decide=is_open and policies.may_decide(actor, request),
        may_cancel=is_open and request.requester_id == actor.pk,
    )


def roles() -> list[tuple[str, str]]:
    """Roles that a decision can give, the usual one first."""
    return [(Role.MEMBER.value, str(Role.MEMBER.label))] + [
        (role.value, str(role.label)) for role in Role if role is not Role.MEMBER
    ]


def of_user(actor: User) -> list[Shown]:
    """The actor's last requests."""
    rows = selectors.of_user(actor)[:10]
    return [Shown(row, False, row.status == JoinStatus.OPEN) for row in rows]


def for_home(actor: User) -> dict[str, Any]:
    """What the home page shows to somebody who is in no team."""
    teams = selectors.joinable_teams(actor)
    listed = list(teams[: MAX_ON_HOME + 1])
    return {
        "lists_teams": policies.lists_teams(),
        "join_teams": listed[:MAX_ON_HOME],
        "more_teams": len(listed) > MAX_ON_HOME,
        "own_joins": of_user(actor),
    }
