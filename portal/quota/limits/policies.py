"""Permissions on limits, requests and reservations.

Readers are members, operators, auditors, and approvers, who decide.
"""

from __future__ import annotations

from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed, NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts import approvers
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Role, Team, User
from portal.people.accounts.policies import is_member, is_owner
from portal.quota.limits.codes import QuotaCode

MAX_OWNERS_NAMED = 3


def may_view_team(actor: User | SystemActor, team: Team) -> bool:
    """Return whether the actor may see a team's quota, usage, ledger and requests."""
    return sees_every_team(actor) or (not isinstance(actor, SystemActor) and is_member(actor, team))


def sees_every_team(actor: User | SystemActor) -> bool:
    """Return whether the actor may see limits and usage of all teams."""
    return isinstance(actor, SystemActor) or actor.sees_all or may_decide(actor)


def require_view_team(actor: User | SystemActor, team: Team) -> None:
    """Raise `NotFound`: the existence of an invisible team is not revealed."""
    if not may_view_team(actor, team):
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": team.slug}))


def may_set_member_caps(actor: User | SystemActor, team: Team) -> bool:
    """Return whether the actor may set member caps of the team."""
    return isinstance(actor, SystemActor) or actor.operates or is_owner(actor, team)


def require_set_member_caps(actor: User | SystemActor, team: Team) -> None:
    if not may_set_member_caps(actor, team):
        owners = team.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True)
        params = {"team": team.name, "owners": list(owners[:MAX_OWNERS_NAMED])}
        raise NotAllowed(Reason(QuotaCode.ONLY_OWNERS_SPLIT, params))


def require_see_limits(actor: User | SystemActor) -> None:
    """Raise `NotAllowed` unless the actor may see the page of all limits: operators and auditors."""
    if not isinstance(actor, SystemActor) and not actor.sees_all:
        raise NotAllowed(Reason(QuotaCode.ONLY_OPERATORS_SET_LIMITS))


def may_set_limits(actor: User | SystemActor) -> bool:
    """Return whether the actor may set quotas, cohorts, shares, site limits and rates."""
    return isinstance(actor, SystemActor) or actor.operates


def require_set_limits(actor: User | SystemActor) -> None:
    if not may_set_limits(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_OPERATORS_SET_LIMITS))


def may_decide(actor: User | SystemActor) -> bool:
    """Return whether the actor may decide requests now: approvers, administrators and delegates."""
    return isinstance(actor, SystemActor) or approvers.may_decide_all(actor)


def require_decide(actor: User | SystemActor) -> None:
    if not may_decide(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_APPROVERS_DECIDE))


def may_book(actor: User | SystemActor) -> bool:
    """Return whether the actor may book capacity and decide reservations."""
    return isinstance(actor, SystemActor) or actor.operates or may_decide(actor)


def require_book(actor: User | SystemActor) -> None:
    if not may_book(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_APPROVERS_BOOK))


def may_reserve(actor: User | SystemActor, team: Team) -> bool:
    """Return whether the actor may request, change and cancel the team's reservations."""
    return (not isinstance(actor, SystemActor) and is_owner(actor, team)) or may_book(actor)


def require_reserve(actor: User | SystemActor, team: Team) -> None:
    """Raise `NotFound` if the actor may not see the team, `NotAllowed` if the actor only sees it."""
    require_view_team(actor, team)
    if not may_reserve(actor, team):
        raise NotAllowed(Reason(QuotaCode.ONLY_OWNERS_RESERVE, {"team": team.name}))
