"""Writes webhooks. Sending is in `fan_out` and `deliveries`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.utils import timezone

from portal.celery import app
from portal.common import etags, signatures
from portal.common.actors import SystemActor
from portal.common.encrypted_fields import Unreadable, decrypt, encrypt
from portal.common.errors import InvalidInput, StateConflict
from portal.common.events import services as events
from portal.common.events.event_types import TYPES, Audience
from portal.common.events.kinds import AuditKind
from portal.common.outgoing.client import UrlProblem, url_problem
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.notify.webhooks import payloads, policies
from portal.notify.webhooks.codes import WebhookCode
from portal.notify.webhooks.models import Delivery, DeliveryState, Endpoint
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Team, User

log = logging.getLogger(__name__)
SECRET = "webhooks.endpoint.secret"  # noqa: S105
MAX_OF_TEAM = 20
MAX_OF_SITE = 50
OVERLAP = timedelta(hours=24)
"""Time for which the previous secret also signs after a rotation."""
URL_CODES = {
    UrlProblem.NO_URL: WebhookCode.URL_NONE,
    UrlProblem.SCHEME: WebhookCode.URL_SCHEME,
    UrlProblem.CREDENTIALS: WebhookCode.URL_CREDENTIALS,
    UrlProblem.INTERNAL: WebhookCode.URL_INTERNAL,
}


@dataclass(frozen=True, slots=True)
class WebhookWithSecret:
    """A webhook with its secret, which is shown only once."""

    endpoint: Endpoint
    secret: str = field(repr=False)


@transaction.atomic
def create(
    *, actor: User | SystemActor, team: Team | None, name: str, url: str, types: Sequence[str]
) -> WebhookWithSecret:
    """Create a webhook for events of a team, or of the site if `team` is None.

    For owners and operators. Raises `InvalidInput`, `NotAllowed` (also for administrators' event types) and
    `StateConflict` (too many webhooks).
    """
    policies.require_manage(actor, team)
    secret = signatures.new_secret()
    endpoint = Endpoint(
        team=team,
        secret=encrypt(secret, purpose=SECRET),
        created_by=None if isinstance(actor, SystemActor) else actor,
        **_validated_columns(actor, team, name, url, types),
    )
    limit = MAX_OF_TEAM if team is not None else MAX_OF_SITE
    # Lock the team, so that concurrent requests cannot together exceed the limit.
    if team is not None:
        Team.objects.select_for_update().get(pk=team.pk)
    if Endpoint.objects.filter(team=team).count() >= limit:
        raise StateConflict(
            Reason(WebhookCode.TOO_MANY, {"limit": limit}), code=ProblemCode.TOO_MANY_WEBHOOKS
        )
    endpoint.save(force_insert=True)
    _record(
        actor,
        AuditKind.WEBHOOK_CREATED,
        endpoint,
        f"created the webhook “{endpoint.name}”",
        types=endpoint.types,
    )
    return WebhookWithSecret(endpoint, secret)


@transaction.atomic
def change(
    *,
    actor: User | SystemActor,
    endpoint: Endpoint,
    name: str | None = None,
    url: str | None = None,
    types: Sequence[str] | None = None,
    enabled: bool | None = None,
    expected: frozenset[str] = etags.ANY,
) -> Endpoint:
    """Change a webhook. None leaves a field unchanged. Enabling resets its failures.

    Raises like `create`, and `PreconditionFailed`.
    """
    endpoint = _locked_endpoint(endpoint)
    policies.require_endpoint(actor, endpoint)
    etags.require_expected(expected, endpoint, name=endpoint.name)
    columns = _validated_columns(
        actor,
        endpoint.team,
        endpoint.name if name is None else name,
        endpoint.url if url is None else url,
        endpoint.types if types is None else types,
    )
    changed = sorted(field for field, value in columns.items() if getattr(endpoint, field) != value)
    for attribute, value in columns.items():
        setattr(endpoint, attribute, value)
    if enabled is not None and enabled != endpoint.enabled:
        endpoint.enabled = enabled
        endpoint.disabled_at = None if enabled else timezone.now()
        changed.append("enabled")
    if "url" in changed or (enabled and "enabled" in changed):
        endpoint.failing_since, endpoint.timeouts, endpoint.not_before = None, 0, None
    if changed:
        endpoint.save()
        details = {"changed": changed, "enabled": endpoint.enabled}
        _record(
            actor, AuditKind.WEBHOOK_CHANGED, endpoint, f"changed the webhook “{endpoint.name}”", **details
        )
    return endpoint


@transaction.atomic
def rotate_secret(*, actor: User | SystemActor, endpoint: Endpoint) -> WebhookWithSecret:
    """Create a new secret. Both secrets sign for `OVERLAP`, so that the receiver can switch meanwhile."""
    endpoint = _locked_endpoint(endpoint)
    policies.require_endpoint(actor, endpoint)
    secret = signatures.new_secret()
    endpoint.previous_secret, endpoint.previous_until = endpoint.secret, timezone.now() + OVERLAP
    endpoint.secret = encrypt(secret, purpose=SECRET)
    endpoint.save(update_fields=["secret", "previous_secret", "previous_until"])
    _record(
        actor,
        AuditKind.WEBHOOK_SECRET_ROTATED,
        endpoint,
        f"created a new secret for the webhook “{endpoint.name}”",
    )
    return WebhookWithSecret(endpoint, secret)


@transaction.atomic
def delete(*, actor: User | SystemActor, endpoint: Endpoint, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a webhook with its log and pending deliveries. Raises `NotAllowed` and `PreconditionFailed`."""
    endpoint = _locked_endpoint(endpoint)
    policies.require_endpoint(actor, endpoint)
    etags.require_expected(expected, endpoint, name=endpoint.name)
    _record(actor, AuditKind.WEBHOOK_DELETED, endpoint, f"deleted the webhook “{endpoint.name}”")
    endpoint.delete()


def delete_all_of_team(event: TeamDeletion) -> None:
    """Delete the webhooks of a deleted team, with pending deliveries."""
    Endpoint.objects.filter(team=event.team).delete()


@transaction.atomic
def send_test(*, actor: User | SystemActor, endpoint: Endpoint) -> Delivery:
    """Queue a test delivery with a single attempt, which records the response.

    Raises `NotAllowed`, and `StateConflict` while an earlier test is pending or if the webhook is disabled.
    """
    endpoint = _locked_endpoint(endpoint)
    policies.require_endpoint(actor, endpoint)
    _require_enabled(endpoint)
    if endpoint.deliveries.filter(entry_id=None, state=DeliveryState.PENDING).exists():
        raise StateConflict(Reason(WebhookCode.ON_ITS_WAY), code=ProblemCode.ON_ITS_WAY)
    now = timezone.now()
    delivery = Delivery.objects.create(
        endpoint=endpoint,
        type="berth.test",
        payload=payloads.test_payload(now, endpoint.name),
        due_at=now,
        created_at=now,
    )
    transaction.on_commit(hint)
    return delivery


@transaction.atomic
def redeliver(*, actor: User | SystemActor, delivery: Delivery) -> Delivery:
    """Send a delivery again, with the same id.

    Raises `NotAllowed`, and `StateConflict` while it is pending or if the webhook is disabled.
    """
    policies.require_endpoint(actor, delivery.endpoint)
    _require_enabled(delivery.endpoint)
    redelivery = Delivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.PENDING)
    if not redelivery.update(
        state=DeliveryState.PENDING, attempt_count=0, due_at=timezone.now(), ended_at=None
    ):
        raise StateConflict(Reason(WebhookCode.ON_ITS_WAY), code=ProblemCode.ON_ITS_WAY)
    delivery.refresh_from_db()
    transaction.on_commit(hint)
    return delivery


def secrets_of(endpoint: Endpoint) -> list[str]:
    """Return the secrets that currently sign, newest first. Raises `Unreadable`."""
    secrets = [decrypt(endpoint.secret, purpose=SECRET)]
    if endpoint.previous_secret and endpoint.previous_until and endpoint.previous_until > timezone.now():
        try:
            secrets.append(decrypt(endpoint.previous_secret, purpose=SECRET))
        except Unreadable:
            log.warning("previous secret of webhook %s is not readable", endpoint.pk)
    return secrets


def hint() -> None:
    """Wake a worker. Without Redis, the next sweep sends the deliveries."""
    try:
        app.send_task("control.send_webhooks", queue="control")
    except Exception as error:
        log.info("could not send hint: %s", error)


def _locked_endpoint(endpoint: Endpoint) -> Endpoint:
    return Endpoint.objects.select_for_update(of=("self",)).select_related("team").get(pk=endpoint.pk)


def _require_enabled(endpoint: Endpoint) -> None:
    if not endpoint.enabled:
        raise StateConflict(Reason(WebhookCode.ENDED), code=ProblemCode.WEBHOOK_DISABLED)


def _validated_columns(
    actor: User | SystemActor, team: Team | None, name: str, url: str, types: Sequence[str]
) -> dict[str, object]:
    """Return the validated columns. Raises `InvalidInput`."""
    errors: dict[str, list[Reason]] = {}
    name, url = " ".join(strip_nul(name).split())[:80], url.strip()
    if not name:
        errors["name"] = [Reason(WebhookCode.NAMELESS)]
    problem = url_problem(url)
    if problem is not None:
        errors["url"] = [Reason(URL_CODES[problem])]
    allowed = {
        event_type.name
        for event_type in TYPES.values()
        if team is None or event_type.audience is Audience.TEAM
    }
    unknown = sorted(set(types) - allowed)
    if unknown:
        errors["types"] = [Reason(WebhookCode.UNKNOWN_TYPES, {"types": [kind[:60] for kind in unknown[:10]]})]
    elif not types:
        errors["types"] = [Reason(WebhookCode.CHOOSE_TYPES)]
    if errors:
        raise InvalidInput(Reason(WebhookCode.NOT_VALID), errors=errors)
    policies.require_types(actor, types)
    chosen = [event_type for event_type in TYPES.values() if event_type.name in set(types)]
    return {
        "name": name,
        "url": url,
        "types": [event_type.name for event_type in chosen],
        "sensitive": any(event_type.audience is Audience.ADMINISTRATORS for event_type in chosen),
    }


def _record(
    actor: User | SystemActor, kind: AuditKind, endpoint: Endpoint, message: str, **data: object
) -> None:
    # Show only the host, because the path may contain a secret.
    host = urlsplit(endpoint.url).hostname or ""
    events.record(
        actor=actor,
        kind=kind,
        team=endpoint.team,
        message=message,
        data={"webhook": str(endpoint.pk), "host": host, **data},
    )
