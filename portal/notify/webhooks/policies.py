"""Permissions on webhooks and event types."""

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
    """Require an owner of the team or an operator; for site webhooks an operator. Raises `NotAllowed`."""
    if team is not None:
        accounts.require_manage_team(actor, team)
    else:
        accounts.require_operator(actor)


def require_see(actor: User, team: Team | None) -> None:
    """Require permission to see webhooks and deliveries, as a manager or auditor. Raises `NotAllowed`."""
    if not actor.sees_all:
        require_manage(actor, team)


def has_read_only_access(actor: User) -> bool:
    """Return whether the actor may see webhooks without managing them.

    Auditors are never owners or operators.
    """
    return actor.is_auditor


def require_see_endpoint(actor: User, endpoint: Endpoint) -> None:
    """Require permission to see the endpoint. Raises `NotAllowed`."""
    if not has_read_only_access(actor):
        require_endpoint(actor, endpoint)


def require_endpoint(actor: User | SystemActor, endpoint: Endpoint) -> None:
    """Require permission to manage the endpoint, including all its event types. Raises `NotAllowed`.

    Otherwise a user could redirect events that they may not receive.
    """
    require_manage(actor, endpoint.team)
    require_types(actor, endpoint.types)


def require_types(actor: User | SystemActor, names: Iterable[str]) -> None:
    """Require an administrator for event types about accounts. Raises `NotAllowed`."""
    if isinstance(actor, SystemActor) or actor.administers:
        return
    restricted = [name for name in names if name in TYPES and TYPES[name].audience is Audience.ADMINISTRATORS]
    if restricted:
        raise NotAllowed(Reason(WebhookCode.ADMINISTRATORS_TYPES, {"types": sorted(restricted)}))


def audience_of(actor: User, team: Team | None) -> Audience:
    """Return the highest audience whose event types the actor may choose."""
    if team is not None:
        return Audience.TEAM
    return Audience.ADMINISTRATORS if actor.administers else Audience.OPERATORS
