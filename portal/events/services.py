"""Writing the audit log, and telling live listeners when the transaction has held."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SystemActor, label_of
from portal.events import live
from portal.events.models import Event

if TYPE_CHECKING:
    from portal.accounts.models import Team, User
    from portal.inventory.models import Pool
    from portal.workspaces.models import Workspace


def record(
    *,
    actor: User | SystemActor,
    kind: str,
    message: str,
    workspace: Workspace | None = None,
    team: Team | None = None,
    pool: Pool | None = None,
    data: dict[str, Any] | None = None,
) -> Event:
    """Add one entry. `message` reads after the actor's name: “ada” + “asked for a workspace”."""
    event = Event.objects.create(
        at=timezone.now(),
        actor=None if isinstance(actor, SystemActor) else actor,
        actor_label=label_of(actor),
        kind=kind,
        workspace=workspace,
        team=team or (workspace.team if workspace is not None else None),
        pool=pool,
        message=message,
        data=data or {},
    )
    if workspace is not None:
        transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, kind))
    return event
