"""Writes revisions. Callers check permissions and write audit log entries."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone

from portal.common.actors import SYSTEM, SystemActor, label_of
from portal.common.history.models import ChangeAction, Revision, SubjectKind

if TYPE_CHECKING:
    from django.contrib.auth.models import _User as User

MAX_KEPT = 200
"""Maximum number of revisions per object. The oldest are deleted."""


def save_revision(
    *,
    actor: User | SystemActor,
    kind: SubjectKind,
    key: UUID,
    act: ChangeAction,
    data: dict[str, Any],
    before: dict[str, Any] | None = None,
    before_at: datetime | None = None,
    restored_from: int | None = None,
) -> Revision:
    """Save a revision. Call it in the transaction of the change, under the object's lock.

    If the object has no revision yet, `before` is saved first, dated `before_at`.
    """
    rows = Revision.objects.filter(kind=kind, key=key)
    last = rows.order_by("-number").values_list("number", flat=True).first() or 0
    now = timezone.now()
    if not last and before is not None:
        _write(SYSTEM, kind, key, 1, ChangeAction.FOUND, before, before_at or now, None)
        last = 1
    written = _write(actor, kind, key, last + 1, act, data, now, restored_from)
    rows.filter(number__lte=written.number - MAX_KEPT).delete()
    return written


def _write(
    actor: User | SystemActor,
    kind: SubjectKind,
    key: UUID,
    number: int,
    act: ChangeAction,
    data: dict[str, Any],
    at: datetime,
    restored_from: int | None,
) -> Revision:
    return Revision.objects.create(
        kind=kind,
        key=key,
        number=number,
        at=at,
        actor=None if isinstance(actor, SystemActor) else actor,
        actor_label=label_of(actor),
        act=act,
        data=data,
        restored_from=restored_from,
    )
