"""Services for sign-ins through providers: create and link accounts, and apply rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SystemActor
from portal.common.constraints import violates
from portal.common.errors import InvalidInput, NotAllowed, NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.selectors import unread_of
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul
from portal.people.accounts import deactivation, sessions, users
from portal.people.accounts import services as accounts
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import ROLE_FIELDS, Membership, Role, Team, User
from portal.people.accounts.policies import require_administrator
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import Provider
from portal.people.identity.decisions import (
    Effect,
    MembershipChange,
    SignInDecision,
    add_role_changes,
    decide,
)
from portal.people.identity.models import GivenPlace, GivenRole, IdentityLink, LinkOrigin
from portal.people.identity.rules import Grants

RULES_NOT_MET = "identity.rules_not_met"
LINK_UNIQUE = ("identity_subject_unique", "identity_expected_unique", "identity_user_unique")


def sign_in(*, provider: Provider, claims: Mapping[str, Any]) -> tuple[User, SignInDecision]:
    """Return the account for the claims, created, linked and updated according to the rules.

    Starts no session. The caller has verified the claims. Raises `NotAllowed` with the reason of a refusal,
    which is recorded in the audit log.
    """
    if not provider.enabled:
        raise NotAllowed(Reason(IdentityCode.PROVIDER_OFF, {"provider": provider.name}))
    try:
        user, decision = _settle(provider, claims)
    except (IntegrityError, InvalidInput):
        # The same person in two browsers: the other request has created the account or link.
        user, decision = _settle(provider, claims)
    if user is None:
        assert decision.refusal is not None
        record_refusal(provider, decision.refusal, user=decision.user)
        raise NotAllowed(decision.refusal)
    return user, decision


@transaction.atomic
def _settle(provider: Provider, claims: Mapping[str, Any]) -> tuple[User | None, SignInDecision]:
    decision = decide(provider, claims)
    if decision.refusal is None and decision.user is not None:
        # Lock against concurrent deactivation and another sign-in of the same person.
        deactivation.lock_user(decision.user)
        decision = decide(provider, claims)
    if decision.refusal is not None or decision.person is None:
        return None, decision
    actor = _actor(provider)
    user = decision.user
    if user is None:
        user = users.create(
            actor=actor,
            username=decision.person.username,
            email=decision.person.email,
            first_name=decision.person.first_name,
            last_name=decision.person.last_name,
            linked=True,
        )
    else:
        _refresh(actor, user, decision)
    _link(actor, user, decision)
    _apply_changes(actor, user, decision)
    if decision.problems:
        _notify_administrators(decision, reverse("identity:provider", args=[provider.id]))
    return user, decision


@transaction.atomic
def replace_grants(*, source: str, name: str, user: User, granted: Grants) -> None:
    """Replace the memberships and roles that `source` gave to the user with `granted`.

    `source` is a key that is not a provider id; `name` is shown in the audit log. Administrators are notified
    of grants that cannot be applied. A deactivated account only loses grants.
    """
    user = deactivation.lock_user(user)
    decision = SignInDecision(source, name, user=user)
    add_role_changes(decision, granted)
    _apply_changes(SystemActor(f"The rules of {name}"), user, decision)
    if decision.problems:
        _notify_administrators(decision, reverse("identity:providers"))


def _actor(provider: Provider) -> SystemActor:
    return SystemActor(f"The rules of {provider.name}")


def _link(actor: SystemActor, user: User, decision: SignInDecision) -> None:
    """Save the link. Raises `IntegrityError` if another request was first."""
    assert decision.person is not None
    now = timezone.now()
    subject = decision.person.subject
    if decision.link is not None:
        link = decision.link
        link.subject, link.last_sign_in_at = subject, now
        link.save(update_fields=["subject", "last_sign_in_at"])
    else:
        IdentityLink.objects.create(
            user=user,
            provider=decision.provider_id,
            subject=subject,
            how=decision.how or LinkOrigin.CREATED,
            last_sign_in_at=now,
        )
    if decision.how is not None:
        events.record(
            actor=actor,
            kind=AuditKind.USER_LINKED,
            message=f"linked the account {user.username} by {decision.how}",
            targets=sessions.audit_targets(user),
            data={
                "username": user.username,
                "provider": decision.provider_id,
                "subject": subject,
                "how": decision.how,
            },
        )


def _refresh(actor: SystemActor, user: User, decision: SignInDecision) -> None:
    """Update address and name from the provider. Keeps the address if another account uses the new one."""
    person = decision.person
    assert person is not None
    changed: dict[str, Any] = {"linked": True}
    others = User.objects.exclude(pk=user.pk)
    email = person.email
    if email and email != user.email and not others.filter(email__iexact=email).exists():
        changed |= {"email": email, "email_confirmed": True}
        events.record(
            actor=actor,
            kind=AuditKind.USER_CHANGED,
            message=f"changed the e-mail address of {user.username}",
            targets=sessions.audit_targets(user),
            data={"username": user.username, "email": email},
        )
    if person.first_name or person.last_name:
        changed |= {"first_name": person.first_name, "last_name": person.last_name}
    for field, value in changed.items():
        setattr(user, field, value)
    user.save(update_fields=list(changed))


def _apply_changes(actor: SystemActor, user: User, decision: SignInDecision) -> None:
    """Apply the changes. Losses come first, because an auditor can only be a viewer."""
    ending = [change for change in decision.membership_changes if change.effect is Effect.LOST]
    _apply_membership_changes(actor, user, decision, ending)
    _give_roles(actor, user, decision)
    _apply_membership_changes(
        actor, user, decision, [change for change in decision.membership_changes if change not in ending]
    )
    # Memberships changed manually are no longer managed by the rules.
    slugs = [change.team for change in decision.membership_changes]
    GivenPlace.objects.filter(user=user, provider=decision.provider_id).exclude(team__slug__in=slugs).delete()


def _apply_membership_changes(
    actor: SystemActor, user: User, decision: SignInDecision, changes: Sequence[MembershipChange]
) -> None:
    for change in changes:
        given_places = GivenPlace.objects.filter(
            user=user, provider=decision.provider_id, team__slug=change.team
        )
        if change.create_team and not Team.objects.filter(slug=change.team).exists():
            accounts.create_team(actor=actor, slug=change.team, name=change.team)
        team = Team.objects.get(slug=change.team)
        current_role = (
            Membership.objects.filter(user=user, team=team).values_list("role", flat=True).first() or ""
        )
        if change.effect is Effect.LOST:
            if accounts.withdraw_member(actor=actor, team=team, user=user):
                given_places.delete()
            else:
                params = {"username": user.username, "slug": team.slug}
                decision.problems.append(Reason(IdentityCode.LAST_OWNER_KEPT, params))
            continue
        if change.role != current_role and not _set_place(actor, user, team, change.role, decision):
            continue
        if change.given:
            present = given_places.first()
            GivenPlace.objects.update_or_create(
                user=user,
                provider=decision.provider_id,
                team=team,
                defaults={
                    "role": change.role,
                    "before": present.before
                    if present is not None and present.role == current_role
                    else current_role,
                },
            )
        else:
            given_places.delete()


def team_deleted(event: TeamDeletion) -> None:
    """Forget which memberships of a deleted team the rules manage."""
    GivenPlace.objects.filter(team=event.team).delete()


def _set_place(actor: SystemActor, user: User, team: Team, role: str, decision: SignInDecision) -> bool:
    if not user.is_active:
        return False
    try:
        if role == Role.VIEWER:
            # Stops the user's workspaces there, which viewers may not have.
            accounts.withdraw_member(actor=actor, team=team, user=user)
        accounts.set_member(actor=actor, team=team, username=user.username, role=role)
    except StateConflict as error:
        decision.problems.append(error.reason)
        return False
    return True


def _give_roles(actor: SystemActor, user: User, decision: SignInDecision) -> None:
    """Apply role changes. Losses come first, because an auditor has no other role."""
    for change in sorted(decision.roles, key=lambda role_change: role_change.effect is not Effect.LOST):
        if change.effect is Effect.KEPT:
            continue
        roles = [role.value for role in user.roles if role != change.role]
        gained = change.effect is Effect.GAINED
        try:
            changed = users.change(actor=actor, user=user, roles=[*roles, *([change.role] if gained else [])])
        except (InvalidInput, StateConflict) as error:
            decision.problems.append(error.reason)
            continue
        for role, column in ROLE_FIELDS.items():
            setattr(user, column, role in changed.roles)
        key: dict[str, Any] = {"user": user, "provider": decision.provider_id, "role": change.role}
        if gained:
            GivenRole.objects.get_or_create(**key)
        else:
            GivenRole.objects.filter(**key).delete()


def _remove_all_grants(user: User, provider_id: str) -> None:
    """Remove memberships and roles given by a provider's rules.

    Raises `StateConflict` if one cannot be removed.
    """
    decision = SignInDecision(provider_id, user=user)
    add_role_changes(decision, Grants({}, (), frozenset()))
    actor = SystemActor(f"The rules of {provider_id}")
    _apply_changes(actor, user, decision)
    if decision.problems:
        raise StateConflict(decision.problems[0])


def _notify_administrators(decision: SignInDecision, path: str) -> None:
    """Record grants that cannot be applied, and notify administrators unless they have an unread notice."""
    sentences = " ".join(sentence_of(problem) for problem in decision.problems)
    events.record(
        actor=SystemActor(f"The rules of {decision.provider_name}"),
        kind=AuditKind.USER_RULES_NOT_MET,
        message=f"could not complete the sign-in of {decision.username}",
        reason=sentences[:500],
        data={
            "provider": decision.provider_id,
            "problems": [problem.as_json() for problem in decision.problems],
        },
    )
    administrators = User.objects.filter(is_superuser=True, is_active=True)
    recipients = [
        administrator
        for administrator in administrators
        if not unread_of(administrator, RULES_NOT_MET).exists()
    ]
    if recipients:
        title = _("A rule of %(provider)s cannot be applied") % {"provider": decision.provider_name}
        events.notify(recipients, RULES_NOT_MET, title, sentences, path)


@transaction.atomic
def record_refusal(provider: Provider, reason: Reason, *, user: User | None = None) -> None:
    """Record a refused sign-in by a provider. Claims are not stored, because they are personal data."""
    events.record(
        actor=SystemActor("Somebody"),
        kind=AuditKind.SESSION_PROVIDER_REFUSED,
        message=f"could not sign in through {provider.name}",
        reason=sentence_of(reason)[:500],
        targets=sessions.audit_targets(user) if user is not None else (),
        data={"provider": provider.id, "code": reason.code.value},
    )


@transaction.atomic
def link(
    *, actor: User | SystemActor, provider: Provider, user: User, subject: str = "", expected: str = ""
) -> IdentityLink:
    """Link an account to the provider's `subject`, or to the name `expected` at its next sign-in.

    Raises `NotAllowed` unless the actor is an administrator, `InvalidInput`, and `StateConflict` (already
    linked).
    """
    require_administrator(actor)
    user = deactivation.lock_user(user)
    subject, expected = strip_nul(subject).strip()[:255], strip_nul(expected).strip().lower()[:150]
    if bool(subject) == bool(expected):
        reason = Reason(IdentityCode.LINK_OF_NOBODY)
        raise InvalidInput(reason, errors={"subject": [reason]})
    row = IdentityLink(
        user=user, provider=provider.id, subject=subject, expected=expected, how=LinkOrigin.ADMINISTRATOR
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        if not violates(error, IdentityLink, *LINK_UNIQUE):
            raise
        params = {"provider": provider.name}
        raise StateConflict(Reason(IdentityCode.LINK_TAKEN, params), code=ProblemCode.LINK_TAKEN) from error
    if subject and not user.linked:
        user.linked = True
        user.save(update_fields=["linked"])
    events.record(
        actor=actor,
        kind=AuditKind.USER_LINKED,
        message=f"linked the account {user.username} to {provider.name}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "provider": provider.id, "subject": subject, "expected": expected},
    )
    return row


@transaction.atomic
def unlink(*, actor: User | SystemActor, provider_id: str, username: str) -> None:
    """Remove a link with the memberships and roles given by rules, and end sessions. A password stays valid.

    Raises `NotAllowed` unless the actor is an administrator, `NotFound`, and `StateConflict` (the last
    administrator).
    """
    require_administrator(actor)
    link = IdentityLink.objects.filter(provider=provider_id, user__username=strip_nul(username)).first()
    if link is None:
        raise NotFound(Reason(IdentityCode.NO_SUCH_LINK))
    user = deactivation.lock_user(link.user)
    _remove_all_grants(user, provider_id)
    link.delete()
    ended = sessions.end_all(user)
    user.linked = IdentityLink.objects.filter(user=user).exclude(subject="").exists()
    user.save(update_fields=["linked", "session_salt"])
    events.record(
        actor=actor,
        kind=AuditKind.USER_UNLINKED,
        message=f"removed the link of {user.username} to {provider_id}",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "provider": provider_id, "sessions": ended},
    )


@transaction.atomic
def record_test(*, actor: User, provider: Provider, username: str = "") -> None:
    """Record that an administrator has tested a provider, and for which name. The test did not sign in."""
    require_administrator(actor)
    events.record(
        actor=actor,
        kind=AuditKind.USER_PROVIDER_TESTED,
        message=f"tested sign-in through {provider.name}",
        data={"provider": provider.id, **({"username": username[:150]} if username else {})},
    )


@transaction.atomic
def end_sessions_of_subject(*, provider: Provider, subject: str) -> int:
    """End the sessions of a user who signed out at the provider. Returns how many were listed."""
    link = IdentityLink.objects.filter(provider=provider.id, subject=subject).select_related("user").first()
    if link is None or not subject:
        return 0
    user = deactivation.lock_user(link.user)
    ended = sessions.end_all(user)
    user.save(update_fields=["session_salt"])
    events.record(
        actor=SystemActor(provider.name),
        kind=AuditKind.SESSION_ENDED,
        message=f"ended all sessions of {user.username}, who signed out at the provider",
        targets=sessions.audit_targets(user),
        data={"username": user.username, "sessions": ended, "provider": provider.id},
    )
    return ended
