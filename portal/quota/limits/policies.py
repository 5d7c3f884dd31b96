"""Who may see and who may change how much whom is given.

Seeing is for those whom it concerns: members, operators, auditors, and approvers, who have to decide on it.
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
    """See a team's quota, use, ledger and requests: its members and viewers, and who sees every team."""
    return sees_every_team(actor) or (not isinstance(actor, SystemActor) and is_member(actor, team))


def sees_every_team(actor: User | SystemActor) -> bool:
    """Whether the limits and the use of all teams are the actor's business."""
    return isinstance(actor, SystemActor) or actor.sees_all or may_decide(actor)


def require_view_team(actor: User | SystemActor, team: Team) -> None:
    """Raises `NotFound`: who may not see a team may not learn that it exists."""
    if not may_view_team(actor, team):
        raise NotFound(Reason(AccountCode.NO_SUCH_TEAM, {"slug": team.slug}))


def may_split(actor: User | SystemActor, team: Team) -> bool:
    """Split the team's quota among its members."""
    return isinstance(actor, SystemActor) or actor.operates or is_owner(actor, team)


def require_split(actor: User | SystemActor, team: Team) -> None:
    if not may_split(actor, team):
        owners = team.memberships.filter(role=Role.OWNER).values_list("user__username", flat=True)
        params = {"team": team.name, "owners": list(owners[:MAX_OWNERS_NAMED])}
        raise NotAllowed(Reason(QuotaCode.ONLY_OWNERS_SPLIT, params))


def require_see_limits(actor: User | SystemActor) -> None:
    """The limits of all teams on one page: for who sets them, and for auditors."""
    if not isinstance(actor, SystemActor) and not actor.sees_all:
        raise NotAllowed(Reason(QuotaCode.ONLY_OPERATORS_SET_LIMITS))


def may_set_limits(actor: User | SystemActor) -> bool:
    """Set quotas, cohorts, shares, limits of the site and rates."""
    return isinstance(actor, SystemActor) or actor.operates


def require_set_limits(actor: User | SystemActor) -> None:
    if not may_set_limits(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_OPERATORS_SET_LIMITS))


def may_decide(actor: User | SystemActor) -> bool:
    """Decide requests at this moment: approvers, administrators, delegates of approvers."""
    return isinstance(actor, SystemActor) or approvers.may_decide_all(actor)


def require_decide(actor: User | SystemActor) -> None:
    if not may_decide(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_APPROVERS_DECIDE))


def may_book(actor: User | SystemActor) -> bool:
    """Book capacity without asking, and decide what others ask to book."""
    return isinstance(actor, SystemActor) or actor.operates or may_decide(actor)


def require_book(actor: User | SystemActor) -> None:
    if not may_book(actor):
        raise NotAllowed(Reason(QuotaCode.ONLY_APPROVERS_BOOK))


def may_reserve(actor: User | SystemActor, team: Team) -> bool:
    """Ask for a reservation for the team, change it and cancel it: its owners, and who books."""
    return (not isinstance(actor, SystemActor) and is_owner(actor, team)) or may_book(actor)


def require_reserve(actor: User | SystemActor, team: Team) -> None:
    """Raises `NotFound` where the actor may not see the team, `NotAllowed` where he only sees it."""
    require_view_team(actor, team)
    if not may_reserve(actor, team):
        raise NotAllowed(Reason(QuotaCode.ONLY_OWNERS_RESERVE, {"team": team.name}))
