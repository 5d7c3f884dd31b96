"""Who may see and manage which webhooks, and have what sent."""

from __future__ import annotations

from collections.abc import Iterable

from portal.common.actors import SystemActor
from portal.common.errors import NotAllowed
from portal.common.events.event_types import TYPES, Audience
from portal.common.reasons.reason import Reason
from portal.notify.webhooks.codes import WebhookCode
from portal.notify.webhooks.models import Endpoint
from portal.people.accounts import policies as accounts
from portal.people.accounts.models import Team, User


def require_manage(actor: User | SystemActor, team: Team | None) -> None:
    """Owners of the team and operators; for those of the site operators. Raises `NotAllowed`."""
    if team is not None:
        accounts.require_manage_team(actor, team)
    else:
        accounts.require_operator(actor)


def require_see(actor: User, team: Team | None) -> None:
    """See them and what becomes of deliveries: who manages them, and auditors. Raises `NotAllowed`."""
    if not actor.sees_all:
        require_manage(actor, team)


def only_sees(actor: User) -> bool:
    """Of those who may see a webhook, who may not manage it: neither owners nor operators are auditors."""
    return actor.is_auditor


def require_see_endpoint(actor: User, endpoint: Endpoint) -> None:
    """As `require_endpoint`, for who does not want to change anything. Raises `NotAllowed`."""
    if not only_sees(actor):
        require_endpoint(actor, endpoint)


def require_endpoint(actor: User | SystemActor, endpoint: Endpoint) -> None:
    """Who may not choose what it is sent may not change where it is sent either. Raises `NotAllowed`."""
    require_manage(actor, endpoint.team)
    require_types(actor, endpoint.types)


def require_types(actor: User | SystemActor, names: Iterable[str]) -> None:
    """What is about people's accounts is for administrators. Raises `NotAllowed`."""
    if isinstance(actor, SystemActor) or actor.administers:
        return
    found = [name for name in names if name in TYPES and TYPES[name].audience is Audience.ADMINISTRATORS]
    if found:
        raise NotAllowed(Reason(WebhookCode.ADMINISTRATORS_TYPES, {"types": sorted(found)}))


def audience_of(actor: User, team: Team | None) -> Audience:
    """Up to which audience the actor may choose types."""
    if team is not None:
        return Audience.TEAM
    return Audience.ADMINISTRATORS if actor.administers else Audience.OPERATORS
