"""Creates, rotates and revokes API tokens. Permissions are in `policies`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.common.actors import SystemActor
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import READING, Scope
from portal.people.accounts import changes, policies, selectors, sessions
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import ApiToken, User
from portal.people.accounts.token_lookup import JOB_TOKEN_PREFIX, TOKEN_PREFIX, digest_of

MAX_OVERLAP_HOURS = 24 * 30


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token. `secret` is shown once and never stored."""

    token: ApiToken
    secret: str = field(repr=False)


@transaction.atomic
def create_token(
    *,
    actor: User | SystemActor,
    user: User,
    name: str,
    scopes: Sequence[str] = (Scope.ALL,),
    expires_at: datetime | None = None,
    made_with: ApiToken | None = None,
) -> NewToken:
    """Create a token of `user`. For the user, the manager of a service account, or the system.

    `made_with` is the token of the request. A token cannot create one with more scopes or a longer life.
    Raises `NotAllowed`, `InvalidInput` (name, scopes, expiry) and `StateConflict` (account deactivated).
    """
    _require_manage(actor, user)
    requested = validate_scopes(scopes)
    _check_expiry(expires_at)
    if user.is_auditor and not READING.issuperset(requested):
        reason = Reason(AccountCode.AUDITOR_TOKEN_WRITES, {"scopes": sorted(set(requested) - READING)})
        raise InvalidInput(reason, errors={"scopes": [reason]})
    if Scope.SCIM in requested:
        _check_scim(user, requested)
    check_no_wider(made_with, requested, expires_at)
    name = name.strip()
    if not name:
        raise InvalidInput(
            Reason(AccountCode.TOKEN_NAMELESS), errors={"name": [Reason(AccountCode.TOKEN_PURPOSE)]}
        )
    _lock_user(user)
    created = mint(
        user=user, name=name, scopes=requested, expires_at=expires_at, created_by=_created_by(actor)
    )
    _record(actor, created.token, AuditKind.TOKEN_CREATED, "created", {"scopes": requested})
    return created


@transaction.atomic
def rotate_token(
    *,
    actor: User | SystemActor,
    token_id: UUID,
    overlap_hours: int = 24,
    made_with: ApiToken | None = None,
) -> NewToken:
    """Create a token with the same scopes, and let the old one expire after `overlap_hours`.

    The new token has the same lifetime, starting now. Raises `NotFound`, `NotAllowed`, `InvalidInput` (hours)
    and `StateConflict` (already rotated or expired, or account deactivated).
    """
    old = _locked_token(actor, token_id)
    _require_manage(actor, old.owner)
    if not 0 <= overlap_hours <= MAX_OVERLAP_HOURS:
        reason = Reason(AccountCode.OVERLAP_OUT_OF_RANGE, {"most": MAX_OVERLAP_HOURS})
        raise InvalidInput(reason, errors={"overlap_hours": [reason]})
    now = timezone.now()
    ended = old.ends_at is not None and old.ends_at <= now
    if ended or ApiToken.objects.filter(replaces=old).exists():
        code = AccountCode.TOKEN_ENDED if ended else AccountCode.TOKEN_ROTATED
        raise StateConflict(Reason(code, {"name": old.name}))
    expires_at = now + (old.expires_at - old.created_at) if old.expires_at is not None else None
    if expires_at is not None and (latest := latest_expiry()) is not None:
        expires_at = min(expires_at, latest)
    check_no_wider(made_with, old.scopes, expires_at)
    created = mint(
        user=old.owner,
        name=old.name,
        scopes=old.scopes,
        expires_at=expires_at,
        created_by=_created_by(actor),
        replaces=old,
    )
    ends = now + timedelta(hours=overlap_hours)
    if old.ends_at is None or ends < old.ends_at:
        old.expires_at = ends
        old.save(update_fields=["expires_at"])
        changes.announce()
    data = {"replaced_by": str(created.token.pk), "overlap_hours": overlap_hours}
    _record(actor, old, AuditKind.TOKEN_ROTATED, "rotated", data)
    return created


@transaction.atomic
def revoke_token(*, actor: User, token_id: UUID) -> None:
    """Revoke a token: one's own, one of a managed service account, or any as an operator. Idempotent.

    Raises `NotFound` and `NotAllowed`.
    """
    token = revocable_token(actor, token_id)
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
        changes.announce()
        _record(actor, token, AuditKind.TOKEN_REVOKED, "revoked")


def revocable_token(actor: User, token_id: UUID) -> ApiToken:
    """Return a token that the actor may revoke, or one that is revoked already.

    Raises `NotFound` and `NotAllowed`.
    """
    token = selectors.tokens_for(actor, revoked=True).filter(pk=token_id).first()
    if token is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_TOKEN))
    if not policies.may_revoke_tokens_of(actor, token.owner):
        raise NotAllowed(Reason(AccountCode.TOKEN_OF_ANOTHER, {"username": token.owner.username}))
    return token


def mint(
    *,
    user: User,
    name: str,
    scopes: Sequence[str],
    expires_at: datetime | None,
    created_by: User | None,
    replaces: ApiToken | None = None,
    renewable_until: datetime | None = None,
) -> NewToken:
    """Insert a token. The caller has checked permissions and writes the audit entry.

    With `renewable_until`, the token is a job token.
    """
    token = ApiToken(
        owner=user,
        name=name[:80],
        scopes=list(scopes),
        expires_at=expires_at,
        renewable_until=renewable_until,
        created_by=created_by,
        replaces=replaces,
    )
    secret = _new_secret(token)
    token.save(force_insert=True)
    return NewToken(token=token, secret=secret)


def replace_secret(token: ApiToken, *, expires_at: datetime) -> NewToken:
    """Give a job token a new secret, which replaces the old one. The caller writes the audit entry."""
    secret = _new_secret(token)
    token.expires_at = expires_at
    token.save(update_fields=["prefix", "digest", "expires_at"])
    return NewToken(token=token, secret=secret)


def _new_secret(token: ApiToken) -> str:
    """Set the prefix and digest of a token that the caller saves. Returns the secret."""
    kind = JOB_TOKEN_PREFIX if token.is_job_token else TOKEN_PREFIX
    secret = kind + secrets.token_urlsafe(32)
    token.prefix, token.digest = secret[: len(kind) + 6], digest_of(secret)
    return secret


def widest_scopes(user: User) -> list[str]:
    """Return the broadest scopes allowed for the user."""
    return sorted(READING) if user.is_auditor else [Scope.ALL]


def latest_expiry() -> datetime | None:
    """Return the latest expiry allowed for a token created now, or None if unlimited."""
    days = settings.BERTH_TOKEN_MAX_DAYS
    return timezone.now() + timedelta(days=days) if days else None


def validate_scopes(scopes: Sequence[str]) -> list[str]:
    """Return the scopes, sorted and without duplicates. Raises `InvalidInput` if empty or unknown."""
    requested = sorted(set(scopes))
    unknown = [scope for scope in requested if scope not in Scope.values]
    if unknown or not requested:
        params = {"known": list(Scope.values)}
        raise InvalidInput(
            Reason(AccountCode.UNKNOWN_SCOPES, {"scopes": unknown, **params})
            if unknown
            else Reason(AccountCode.NO_SCOPES, params),
            errors={"scopes": [Reason(AccountCode.CHOOSE_SCOPES, params)]},
        )
    return requested


def check_no_wider(parent: ApiToken | None, scopes: Sequence[str], expires_at: datetime | None) -> None:
    """Raise `NotAllowed` if a token would create one with more scopes or a longer life."""
    if parent is None:
        return
    # SCIM acts for a provider and is not included in ALL.
    allowed_scopes = set(Scope.values) - {Scope.SCIM} if Scope.ALL in parent.scopes else set(parent.scopes)
    wider = sorted(set(scopes) - allowed_scopes)
    if wider:
        raise NotAllowed(Reason(AccountCode.TOKEN_WIDER, {"scopes": wider}))
    if parent.expires_at is not None and (expires_at is None or expires_at > parent.expires_at):
        until = parent.expires_at.isoformat(timespec="seconds")
        raise NotAllowed(Reason(AccountCode.TOKEN_OUTLIVES, {"until": until}))


def _check_scim(user: User, requested: Sequence[str]) -> None:
    """Require that a SCIM token belongs to an administrator and has no other scope.

    Raises `NotAllowed` or `InvalidInput`.
    """
    if not user.administers:
        raise NotAllowed(Reason(CommonCode.ONLY_ADMINISTRATORS))
    if len(requested) > 1:
        reason = Reason(AccountCode.SCIM_ALONE)
        raise InvalidInput(reason, errors={"scopes": [reason]})


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is None:
        return
    if expires_at <= timezone.now():
        raise InvalidInput(
            Reason(AccountCode.EXPIRY_PAST),
            errors={"expires_at": [Reason(AccountCode.EXPIRY_NOT_IN_FUTURE)]},
        )
    latest = latest_expiry()
    if latest is not None and expires_at > latest:
        reason = Reason(AccountCode.EXPIRY_TOO_LATE, {"days": settings.BERTH_TOKEN_MAX_DAYS})
        raise InvalidInput(reason, errors={"expires_at": [reason]})


def _require_manage(actor: User | SystemActor, user: User) -> None:
    if not policies.may_manage_tokens_of(actor, user):
        raise NotAllowed(Reason(AccountCode.TOKEN_FOR_ANOTHER))


def _locked_token(actor: User | SystemActor, token_id: UUID) -> ApiToken:
    """Return an unrevoked token visible to the actor, locked so that it is rotated only once.

    Raises `NotFound` and `StateConflict`.
    """
    tokens = ApiToken.objects.unrevoked() if isinstance(actor, SystemActor) else selectors.tokens_for(actor)
    visible = tokens.filter(pk=token_id).select_related("owner").first()
    if visible is None:
        raise NotFound(Reason(AccountCode.NO_SUCH_TOKEN))
    _lock_user(visible.owner)
    rows = ApiToken.objects.unrevoked().select_for_update(of=("self",)).select_related("owner__owning_team")
    token = rows.filter(pk=token_id).first()
    if token is None:
        # Revoked meanwhile.
        raise NotFound(Reason(AccountCode.NO_SUCH_TOKEN))
    return token


def _lock_user(user: User) -> None:
    """Lock the user against concurrent deactivation, which then waits and revokes the new token, too.

    Raises `StateConflict` if the user is already deactivated.
    """
    active = User.objects.select_for_update(no_key=True).filter(pk=user.pk, is_active=True)
    if not active.values_list("pk", flat=True).first():
        raise StateConflict(Reason(AccountCode.USER_DEACTIVATED, {"username": user.username}))


def _created_by(actor: User | SystemActor) -> User | None:
    return None if isinstance(actor, SystemActor) else actor


def _record(
    actor: User | SystemActor,
    token: ApiToken,
    kind: AuditKind,
    action: str,
    data: dict[str, object] | None = None,
) -> None:
    own = not isinstance(actor, SystemActor) and actor.pk == token.owner_id
    events.record(
        actor=actor,
        kind=kind,
        team=token.owner.owning_team,
        message=f"{action} the token “{token.name}”" + ("" if own else f" of {token.owner.username}"),
        targets=sessions.audit_targets(token.owner),
        data={"token": str(token.pk), "owner": token.owner.username, **(data or {})},
    )
