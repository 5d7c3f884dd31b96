"""Grants: approvals create them; time or revocation ends them. No workspace stops when a grant ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.formatting import format_day_time, format_resource_amount
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.models import User
from portal.people.accounts.selectors import owners_of
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.limits.models import Grant
from portal.quota.requests import policies
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.models import QuotaRequest, RequestKind

WARNING = timedelta(hours=24)
BATCH = 200


def create_grant(*, request: QuotaRequest, amount: int, until: datetime | None) -> Grant:
    """Create the grant of an approved request, inside its transaction."""
    grant = Grant.objects.create(
        team=request.team,
        user=request.requester if request.kind == RequestKind.MEMBER_CAP else None,
        resource=request.resource,
        amount=amount,
        starts_at=timezone.now(),
        ends_at=until,
        request=request,
    )
    emit(LimitsChanged())
    return grant


@transaction.atomic
def revoke_grant(*, actor: User, grant_id: UUID, note: str = "") -> Grant:
    """End a grant now. Existing workspaces continue; no new ones start on it. Idempotent.

    Raises `NotFound` and `NotAllowed` (the actor may not decide such requests).
    """
    grant = (
        Grant.objects.select_related("team", "user", "request", "request__requester")
        .filter(pk=grant_id)
        .first()
    )
    if grant is None:
        raise NotFound(Reason(RequestCode.NO_SUCH_GRANT))
    policies.require_revoke(actor, grant)
    now = timezone.now()
    if not Grant.objects.filter(pk=grant.pk, ended_at=None).update(ended_at=now):
        grant.refresh_from_db()
        return grant
    if grant.ends_at is not None and grant.ends_at <= now:
        raise StateConflict(Reason(RequestCode.GRANT_ENDED))
    grant.ended_at = now
    note = strip_nul(note).strip()[:2000]
    amount = format_resource_amount(grant.resource, grant.amount)
    events.record(
        actor=actor,
        kind=AuditKind.QUOTA_GRANT_REVOKED,
        team=grant.team,
        message=f"revoked {amount} granted to {grant.team.name}" + (f": {note}" if note else ""),
        targets=_targets(grant),
        data=_data(grant, note=note),
    )
    others = {user.pk: user for user in _recipients(grant)}
    others.pop(actor.pk, None)
    title = _("%(username)s revoked the grant of %(amount)s to %(team)s") % {
        "username": actor.username,
        "amount": amount,
        "team": grant.team.name,
    }
    events.notify(others.values(), "quota.grant_revoked", title, note, _url(grant))
    emit(LimitsChanged())
    return grant


def end_due_grants() -> int:
    """Notify of grants that end within a day, and end expired ones, each once.

    Returns the number of ended grants. Safe to run concurrently: a conditional update decides which run
    notifies.
    """
    now = timezone.now()
    soon = Grant.objects.filter(
        ended_at=None, warned_at=None, ends_at__gt=now, ends_at__lte=now + WARNING
    ).filter(ends_at__gt=F("starts_at") + WARNING)
    for grant in soon.select_related("team", "user", "request__requester")[:BATCH]:
        _warn(grant, now)
    ended = 0
    for grant in Grant.objects.run_out(now).select_related("team", "user", "request__requester")[:BATCH]:
        ended += _end(grant, now)
    return ended


@transaction.atomic
def _warn(grant: Grant, now: datetime) -> None:
    if not Grant.objects.filter(pk=grant.pk, ended_at=None, warned_at=None).update(warned_at=now):
        return
    amount = format_resource_amount(grant.resource, grant.amount)
    events.notify(
        _recipients(grant),
        "quota.grant_ends_soon",
        _("Grant of %(amount)s to %(team)s ends %(time)s UTC")
        % {"amount": amount, "team": grant.team.name, "time": format_day_time(grant.ends_at or now)},
        _("Running work continues; new work cannot use the grant. Request it again if you need it longer."),
        _url(grant),
    )


@transaction.atomic
def _end(grant: Grant, now: datetime) -> bool:
    if not Grant.objects.filter(pk=grant.pk, ended_at=None).update(ended_at=now):
        return False
    amount = format_resource_amount(grant.resource, grant.amount)
    events.record(
        actor=SYSTEM,
        kind=AuditKind.QUOTA_GRANT_ENDED,
        team=grant.team,
        message=f"ended the grant of {amount} to {grant.team.name}: it has expired",
        targets=_targets(grant),
        data=_data(grant),
    )
    events.notify(
        _recipients(grant),
        "quota.grant_ended",
        _("Grant of %(amount)s to %(team)s has ended") % {"amount": amount, "team": grant.team.name},
        _("Running work continues; new work cannot use the grant. Request it again if you still need it."),
        _url(grant),
    )
    emit(LimitsChanged())
    return True


def _recipients(grant: Grant) -> list[User]:
    """Return the owners of the team, the requester, and the member whose cap it raises."""
    users = {user.pk: user for user in owners_of(grant.team)}
    if grant.request is not None:
        users[grant.request.requester_id] = grant.request.requester
    if grant.user is not None:
        users[grant.user.pk] = grant.user
    return list(users.values())


def _url(grant: Grant) -> str:
    if grant.request_id is not None:
        return reverse("quota_requests:request", args=[grant.request_id])
    return reverse("home:team", args=[grant.team.slug])


def _data(grant: Grant, **more: str) -> dict[str, object]:
    return {
        "grant": str(grant.pk),
        "request": str(grant.request_id) if grant.request_id else None,
        "resource": grant.resource,
        "amount": grant.amount,
        **more,
    }


def _targets(grant: Grant) -> list[Target]:
    return [Target(TargetKind.QUOTA_REQUEST, str(grant.request_id))] if grant.request_id else []
