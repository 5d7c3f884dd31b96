"""Audit entries about home moves."""

from __future__ import annotations

from portal.common.actors import SystemActor
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.workspaces.models import HomeMove
from provisioning.types import home_key


def home_of(move: HomeMove) -> str:
    """Return the home's team and owner as `team/owner`."""
    return home_key(move.team.slug, move.owner.username)


def label_of(move: HomeMove) -> str:
    """Return the move as a noun phrase."""
    return f"the move of the home folder {home_of(move)} from {move.source_name} to {move.target_name}"


def record(
    move: HomeMove, actor: User | SystemActor, kind: AuditKind, message: str, cause: Reason | None = None
) -> None:
    """Write an audit entry about the move. `cause` is the reason for a failure."""
    events.record(
        actor=actor,
        kind=kind,
        message=message,
        cause=cause.as_json() if cause is not None else None,
        team=move.team,
        pool=move.pool,
        targets=[Target(TargetKind.USER, str(move.owner_id))],
        data={
            "owner": move.owner.username,
            "home": home_of(move),
            "from": move.source_name,
            "to": move.target_name,
        },
    )
