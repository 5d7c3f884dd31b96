"""Decides what a sign-in through a provider would do, for sign-ins, tests and previews.

Read-only. `services.sign_in` carries out a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError

from portal.common.names import slug_validator, username_validator
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import ROLE_FIELDS, Membership, SiteRole, Team, User
from portal.people.identity import rules
from portal.people.identity.codes import IdentityCode
from portal.people.identity.config import TEAM_ROLES, Provider
from portal.people.identity.models import GivenPlace, GivenRole, IdentityLink, LinkOrigin
from portal.people.identity.rules import ProviderIdentity, SignInRefused

MAX_NAME = 32


class Effect(StrEnum):
    """Change of a membership or role."""

    GAINED = "gained"
    KEPT = "kept"
    CHANGED = "changed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Change of a membership. `role` is the new role, empty if the membership ends.

    `given`: the rules manage the membership.
    """

    team: str
    role: str
    effect: Effect
    given: bool
    create_team: bool = False


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Change of a site role."""

    role: str
    effect: Effect


@dataclass(slots=True)
class SignInDecision:
    """Outcome of a sign-in: the account (None to create one), its link, and changes.

    The sign-in is accepted if `refusal` is None. `problems` are rules that cannot be satisfied, for
    administrators.
    """

    provider_id: str
    provider_name: str = ""
    person: ProviderIdentity | None = None
    refusal: Reason | None = None
    user: User | None = None
    link: IdentityLink | None = None
    how: LinkOrigin | None = None
    membership_changes: list[MembershipChange] = field(default_factory=list)
    roles: list[RoleChange] = field(default_factory=list)
    problems: list[Reason] = field(default_factory=list)

    @property
    def username(self) -> str:
        """Name of the account, or "" if there would be none."""
        if self.user is not None:
            return self.user.username
        return self.person.username if self.person is not None and self.refusal is None else ""

    @property
    def action(self) -> str:
        """`refuse`, `create`, `link` or `sign_in`."""
        if self.refusal is not None:
            return "refuse"
        if self.user is None:
            return "create"
        return "link" if self.how is not None else "sign_in"


def decide(provider: Provider, claims: Mapping[str, Any]) -> SignInDecision:
    """Return the decision for these claims. Problems with claims become a refusal, not an exception."""
    decision = SignInDecision(provider.id, provider.name)
    try:
        decision.person = rules.read(provider, claims)
        _find(decision, provider, decision.person)
        add_role_changes(decision, rules.grants(provider, claims))
    except SignInRefused as error:
        decision.refusal = error.reason
    return decision


def _find(decision: SignInDecision, provider: Provider, person: ProviderIdentity) -> None:
    """Find the account: already linked, to be linked, or to be created. Raises `SignInRefused`."""
    links = IdentityLink.objects.filter(provider=provider.id).select_related("user")
    link = links.filter(subject=person.subject).first()
    if link is None and (waiting := links.filter(subject="", expected=person.username).first()):
        link, decision.how = waiting, LinkOrigin.ADMINISTRATOR
    if link is not None:
        decision.link, decision.user = link, link.user
        _require_open(link.user)
        return
    decision.user, decision.how = _by_rule(provider, person)
    if decision.user is None:
        _require_new(provider, person)
        decision.how = LinkOrigin.CREATED


def _require_open(user: User) -> None:
    params = {"username": user.username}
    if user.deleted_at is not None:
        raise SignInRefused(Reason(AccountCode.USER_DELETED, params))
    if not user.is_active:
        raise SignInRefused(Reason(IdentityCode.ACCOUNT_DEACTIVATED, params))


def _by_rule(provider: Provider, person: ProviderIdentity) -> tuple[User | None, LinkOrigin | None]:
    """Return an existing account that the settings let this provider link, and how.

    Raises `SignInRefused`, also for an account with site roles, because the operator of the provider would
    gain them.
    """
    user: User | None = None
    linked_by: LinkOrigin | None = None
    if "email" in provider.link and person.email and person.email.isascii():
        user, linked_by = _with_verified_email(person.email), LinkOrigin.EMAIL
    if user is None and "username" in provider.link:
        user, linked_by = (
            User.objects.not_deleted().filter(username=person.username).first(),
            LinkOrigin.USERNAME,
        )
    if user is None:
        return None, None
    _require_open(user)
    params = {"username": user.username, "provider": provider.name}
    if user.roles:
        raise SignInRefused(Reason(IdentityCode.ROLES_NOT_LINKED, params))
    if IdentityLink.objects.filter(provider=provider.id, user=user).exists():
        raise SignInRefused(Reason(IdentityCode.LINKED_TO_ANOTHER, params))
    return user, linked_by


def _with_verified_email(email: str) -> User | None:
    """Return the user whose address was confirmed by an administrator or provider.

    Otherwise a user could enter another person's address and receive that person's teams.
    """
    return User.objects.not_deleted().filter(email__iexact=email, email_confirmed=True).first()


def _require_new(provider: Provider, person: ProviderIdentity) -> None:
    """Raise `SignInRefused` unless an account can be created for this person."""
    if not provider.create_accounts:
        raise SignInRefused(Reason(IdentityCode.NO_ACCOUNT, {"provider": provider.name}))
    claim = provider.claims.username
    try:
        username_validator(person.username)
    except ValidationError as error:
        params = {"claim": claim, "value": person.username[:100]}
        raise SignInRefused(Reason(IdentityCode.USERNAME_NOT_VALID, params)) from error
    if len(person.username) > MAX_NAME:
        raise SignInRefused(Reason(IdentityCode.USERNAME_TOO_LONG, {"claim": claim, "limit": MAX_NAME}))
    if User.objects.filter(username=person.username).exists():
        params = {"username": person.username, "provider": provider.name}
        raise SignInRefused(Reason(IdentityCode.USERNAME_TAKEN, params))
    if person.email and User.objects.filter(email__iexact=person.email).exists():
        raise SignInRefused(
            Reason(IdentityCode.EMAIL_TAKEN, {"email": person.email, "provider": provider.name})
        )


def add_role_changes(decision: SignInDecision, granted: rules.Grants) -> None:
    """Add the changes of memberships and roles to the decision, and rules that cannot be satisfied."""
    user = decision.user
    desired_roles = _possible_roles(decision, granted)
    current_roles: dict[str, str] = {}
    given_places: dict[str, GivenPlace] = {}
    if user is not None:
        memberships = Membership.objects.filter(user=user).values_list("team__slug", "role")
        current_roles = dict(memberships)
        place_rows = GivenPlace.objects.filter(user=user, provider=decision.provider_id).select_related(
            "team"
        )
        given_places = {place.team.slug: place for place in place_rows}
    for slug in sorted({*desired_roles, *given_places}):
        change = place_change(
            desired_roles.get(slug, ""), current_roles.get(slug, ""), given_places.get(slug)
        )
        if change is not None:
            new = slug in granted.may_create and not Team.objects.filter(slug=slug).exists()
            decision.membership_changes.append(MembershipChange(slug, *change, create_team=new))
    has = set() if user is None else {role for role in SiteRole if getattr(user, ROLE_FIELDS[role])}
    mine_too = (
        set()
        if user is None
        else set(
            GivenRole.objects.filter(user=user, provider=decision.provider_id).values_list("role", flat=True)
        )
    )
    for role in SiteRole:
        if role in granted.roles:
            decision.roles.append(RoleChange(role.value, Effect.KEPT if role in has else Effect.GAINED))
        elif role in mine_too and role in has:
            decision.roles.append(RoleChange(role.value, Effect.LOST))


def place_change(
    desired_role: str, current_role: str, given_place: GivenPlace | None
) -> tuple[str, Effect, bool] | None:
    """Return the new role, its effect, and whether the rules manage the membership afterwards.

    A membership changed manually since the rules gave it is no longer managed by them. Returns None if the
    rules do not affect the membership.
    """
    if given_place is not None and given_place.role != current_role:
        given_place = None
    if desired_role:
        if given_place is not None or not current_role:
            effect = (
                Effect.GAINED
                if not current_role
                else Effect.KEPT
                if desired_role == current_role
                else Effect.CHANGED
            )
            return desired_role, effect, True
        if TEAM_ROLES.index(current_role) >= TEAM_ROLES.index(desired_role):
            return current_role, Effect.KEPT, False
        return desired_role, Effect.CHANGED, True
    if given_place is None:
        return None
    return (given_place.before, Effect.CHANGED, False) if given_place.before else ("", Effect.LOST, False)


def _possible_roles(decision: SignInDecision, granted: rules.Grants) -> dict[str, str]:
    """Return the desired memberships in teams that exist or that a rule may create."""
    existing = set(Team.objects.filter(slug__in=granted.memberships).values_list("slug", flat=True))
    roles = {}
    for slug, role in granted.memberships.items():
        params = {"slug": slug[:80], "provider": decision.provider_name}
        if slug in existing or (slug in granted.may_create and _is_slug(slug)):
            roles[slug] = role
        else:
            code = (
                IdentityCode.TEAM_NAME_NOT_VALID
                if slug in granted.may_create
                else IdentityCode.TEAM_NOT_THERE
            )
            decision.problems.append(Reason(code, params))
    return roles


def _is_slug(slug: str) -> bool:
    try:
        slug_validator(slug)
    except ValidationError:
        return False
    return len(slug) <= 40


def missing_teams(provider: Provider) -> list[str]:
    """Return teams that rules name literally, that do not exist and that no rule creates."""
    slugs = {
        rule.team for rule in provider.rules if rule.team and "\\" not in rule.team and not rule.create_team
    }
    return sorted(slugs - set(Team.objects.filter(slug__in=slugs).values_list("slug", flat=True)))
