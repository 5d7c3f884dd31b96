"""Presentation of joinable teams and join requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.people.accounts.models import Role, User
from portal.people.join_requests import policies, selectors
from portal.people.join_requests.models import JoinRequest, JoinState

MAX_ON_HOME = 20

LOOKS: dict[str, tuple[str | Promise, str, str]] = {
    JoinState.OPEN: (_("Waiting for an owner"), "hourglass", "wait"),
    JoinState.APPROVED: (_("Approved"), "circle-check", "ok"),
    JoinState.DENIED: (_("Denied"), "circle-x", "bad"),
    JoinState.CANCELLED: (_("Cancelled"), "arrow-back-up", ""),
    JoinState.EXPIRED: (_("Expired"), "clock", ""),
}
"""Word, icon and tone by state."""


@dataclass(frozen=True, slots=True)
class JoinRequestRow:
    """A request with the actions available to the user."""

    request: JoinRequest
    may_decide: bool
    may_cancel: bool

    @property
    def look(self) -> tuple[str | Promise, str, str]:
        return LOOKS[self.request.state]


def present_request(actor: User, request: JoinRequest) -> JoinRequestRow:
    """Return the request with the actions available to the actor."""
    is_open = request.state == JoinState.OPEN
    return JoinRequestRow(
        request,
        may_decide=is_open and policies.may_decide(actor, request),
        may_cancel=is_open and request.requester_id == actor.pk,
    )


def roles() -> list[tuple[str, str]]:
    """Return the roles that a decision can grant, default first."""
    return [(Role.MEMBER.value, str(Role.MEMBER.label))] + [
        (role.value, str(role.label)) for role in Role if role is not Role.MEMBER
    ]


def present_own_requests(actor: User) -> list[JoinRequestRow]:
    """Return the actor's latest requests."""
    rows = selectors.requests_of_user(actor)[:10]
    return [JoinRequestRow(row, False, row.state == JoinState.OPEN) for row in rows]


def home_page_context(actor: User) -> dict[str, Any]:
    """Return the context of the home page for users without a team."""
    teams = selectors.joinable_teams(actor)
    teams_shown = list(teams[: MAX_ON_HOME + 1])
    return {
        "lists_teams": policies.lists_teams(),
        "join_teams": teams_shown[:MAX_ON_HOME],
        "more_teams": len(teams_shown) > MAX_ON_HOME,
        "own_joins": present_own_requests(actor),
    }
