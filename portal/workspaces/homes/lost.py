"""Homes on removed machines, until their owners agree to new, empty ones."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import NotAllowed, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.domain_events import CapacityFreed, NodeForgotten
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeDeletion, HomePlace, HomeUsage, LostHome, Workspace
from provisioning.types import home_key


def visible_lost_homes(actor: User) -> QuerySet[LostHome]:
    """Return the actor's own lost homes, or all for operators and auditors."""
    homes = LostHome.objects.select_related("owner", "team", "pool")
    return homes if actor.sees_all else homes.filter(owner=actor)


def open_lost_home(workspace: Workspace) -> LostHome | None:
    """Return the lost home that a workspace has to wait for, or `None`."""
    return LostHome.objects.filter(
        owner=workspace.owner_id, team=workspace.team_id, recreated_at=None
    ).first()


def node_forgotten(event: NodeForgotten) -> None:
    """Record that the homes on a removed machine are lost, and notify their owners.

    Administrators are notified about pending deletions on the machine, which were not done.
    """
    node = Node.objects.get(pk=event.node_id)
    used = {
        (user, team): mib
        for user, team, mib in HomeUsage.objects.filter(node=node).values_list(
            "owner_id", "team_id", "used_mib"
        )
    }
    places = list(HomePlace.objects.filter(node=node).select_related("owner", "team"))
    now = timezone.now()
    LostHome.objects.bulk_create(
        [
            LostHome(
                owner_id=place.owner_id,
                team_id=place.team_id,
                pool_id=place.pool_id,
                node=node.name,
                used_mib=used.get((place.owner_id, place.team_id)),
                lost_at=now,
            )
            for place in places
            if place.owner.deleted_at is None
        ]
    )
    for place in places:
        home = home_key(place.team.slug, place.owner.username)
        events.record(
            actor=SYSTEM,
            kind=AuditKind.USER_HOME_LOST,
            message=f"recorded the home folder {home} as lost: its node {node.name} was removed",
            team=place.team,
            targets=[Target(TargetKind.USER, str(place.owner_id))],
            data={"owner": place.owner.username, "home": home, "node": node.name},
        )
        events.notify(
            [place.owner],
            "home.lost",
            _("Your home folder in %(team)s is on a machine that was removed") % {"team": place.team.name},
            _("It was on %(node)s. New workspaces wait until you create an empty home folder.")
            % {"node": node.name},
            "/homes/",
        )
    HomePlace.objects.filter(node=node).delete()
    HomeUsage.objects.filter(node=node).delete()
    for deletion in HomeDeletion.objects.filter(node=node).select_related("owner", "team"):
        home = home_key(deletion.team.slug, deletion.owner.username)
        events.record(
            actor=SYSTEM,
            kind=AuditKind.USER_HOME_NOT_DELETED,
            message=f"could not delete the home folder {home}: its node {node.name} was removed",
            team=deletion.team,
            targets=[Target(TargetKind.USER, str(deletion.owner_id))],
            data={"owner": deletion.owner.username, "home": home, "node": node.name},
        )
        deletion.delete()


@transaction.atomic
def recreate(*, actor: User, lost_home_id: UUID) -> LostHome:
    """Allow the owner to start with a new, empty home; the old one stays listed. Idempotent.

    For the owner and operators. Raises `NotFound` (also if the actor may not see it) and `NotAllowed`.
    """
    lost = (
        LostHome.objects.select_for_update(of=("self",))
        .select_related("owner", "team", "pool")
        .filter(pk=lost_home_id)
        .first()
    )
    if lost is None or not (actor.sees_all or may_recreate(actor, lost)):
        raise NotFound(Reason(WorkspaceCode.NO_SUCH_HOME))
    require_recreate(actor, lost)
    if lost.recreated_at is not None:
        return lost
    lost.recreated_at = timezone.now()
    lost.save(update_fields=["recreated_at"])
    home = home_key(lost.team.slug, lost.owner.username)
    events.record(
        actor=actor,
        kind=AuditKind.USER_HOME_RECREATED,
        message=f"created an empty home folder {home}: the old one was on {lost.node}, which was removed",
        team=lost.team,
        targets=[Target(TargetKind.USER, str(lost.owner_id))],
        data={"owner": lost.owner.username, "home": home, "node": lost.node},
    )
    waiting = Workspace.objects.filter(owner=lost.owner, team=lost.team, state=State.PENDING)
    for workspace in waiting:
        emit(RequestChanged(workspace))
    emit(CapacityFreed())
    return lost


def may_recreate(actor: User, lost: LostHome) -> bool:
    """Return whether the actor may decide about the lost home."""
    return actor.pk == lost.owner_id or actor.operates


def require_recreate(actor: User, lost: LostHome) -> None:
    """Raise `NotAllowed` unless the actor may decide about the lost home."""
    if not may_recreate(actor, lost):
        raise NotAllowed(Reason(WorkspaceCode.ONLY_ITS_OPERATORS, {"owner": lost.owner.username}))
