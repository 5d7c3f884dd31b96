"""Read operations on orphans, for operators and auditors."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_see_all
from portal.workspaces.orphans.codes import OrphanCode
from portal.workspaces.orphans.models import THERE, Orphan, OrphanKind, OrphanState
from portal.workspaces.orphans.ownership import EntryKey, owned

AT_ONCE = frozenset({OrphanKind.WORKSPACE, OrphanKind.PROCESS, OrphanKind.CONTROL_GROUP})
"""Kinds that cannot have an owner and are removed as soon as they are found."""


def orphans(actor: User) -> QuerySet[Orphan]:
    """Return orphans that exist or were recently removed, except those that now have an owner."""
    require_see_all(actor)
    keys = {key_of(row): row.pk for row in Orphan.objects.filter(state__in=THERE)}
    return Orphan.objects.select_related("pool").exclude(pk__in=[keys[key] for key in owned(keys)])


def key_of(orphan: Orphan) -> EntryKey:
    return EntryKey(orphan.pool_id, orphan.node, orphan.kind, orphan.name)


def present_orphans(actor: User) -> QuerySet[Orphan]:
    return orphans(actor).filter(state__in=THERE)


def ended_orphans(actor: User) -> QuerySet[Orphan]:
    return orphans(actor).filter(~Q(state__in=THERE)).order_by("-ended_at", "-id")


def orphan(actor: User, orphan_id: UUID) -> Orphan:
    orphan = orphans(actor).filter(pk=orphan_id).first()
    if orphan is None:
        raise NotFound(Reason(OrphanCode.NO_SUCH_ORPHAN))
    return orphan


def automatic_removal_at(orphan: Orphan) -> datetime | None:
    """Return when the orphan is removed automatically, or `None` for never."""
    if orphan.state != OrphanState.FOUND or orphan.kind == OrphanKind.HOME:
        return None
    if orphan.kind in AT_ONCE:
        return orphan.first_seen_at
    hours = settings.BERTH_ORPHAN_FOLDER_HOURS
    return orphan.first_seen_at + timedelta(hours=hours) if hours else None
