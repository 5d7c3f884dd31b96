"""Invites the people on a list to a team, each independently of the others.

People with an account are added. Administrators also create accounts for new e-mail addresses; so do owners
where the site allows it (ADR 0153).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common import etags, storage
from portal.common.constraints import violates
from portal.common.errors import InvalidInput, NotAllowed, PortalError, StateConflict
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.reasons.reason import Reason
from portal.people.accounts import policies, services, users
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.free_names import free_account_name, name_base, taken_account_names
from portal.people.accounts.invitations.codes import InvitationCode
from portal.people.accounts.invitations.lines import MAX_PEOPLE, InvitationLine, list_too_long
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import Membership, Role, Team, User

MAX_NEW_A_DAY = 200
"""Accounts that one person without the role of administrator can create in 24 hours."""
NEW_MEMBER = frozenset({etags.NOTHING})


class Outcome(models.TextChoices):
    """The effect of a line, planned or done."""

    INVITED = "invited", _("Invited")
    ADDED = "added", _("Added")
    ALREADY_MEMBER = "already_member", _("Already a member")
    REFUSED = "refused", _("Refused")

    @property
    def planned_label(self) -> str:
        """The label before the list is sent."""
        planned = {Outcome.INVITED: _("To be invited"), Outcome.ADDED: _("To be added")}
        return str(planned.get(self, self.label))


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one line. `error` is why it is refused.

    `username` is the existing, new or planned account. `link` is set for a new account if the actor may see
    it.
    """

    line: InvitationLine
    outcome: Outcome
    role: str
    username: str = ""
    error: PortalError | None = None
    link: users.Link | None = None
    mailed: bool = False

    @property
    def role_label(self) -> str:
        return str(Role(self.role).label) if self.role in Role.values else self.role


@dataclass(frozen=True, slots=True)
class Person:
    """The person on a line: an account, or the address of a new one. `membership` is the current one."""

    user: User | None
    address: str = ""
    membership: Membership | None = None


def plan(
    *,
    actor: User,
    team: Team,
    people: Sequence[InvitationLine],
    default_role: str = Role.MEMBER,
    may_create: bool = True,
) -> list[LineResult]:
    """Return what `invite` would do with each line. Writes nothing. Raises like `invite`."""
    return _results(actor, team, people, default_role, may_create, write=False)


def invite(
    *,
    actor: User,
    team: Team,
    people: Sequence[InvitationLine],
    default_role: str = Role.MEMBER,
    may_create: bool = True,
) -> list[LineResult]:
    """Add or invite the people to the team, each in its own transaction. Roles of members stay.

    Without `may_create`, no account is created. For owners of the team and operators. Raises `NotAllowed`,
    `InvalidInput` (default role; too many people) and `StateConflict` (the team is being deleted).
    """
    return _results(actor, team, people, default_role, may_create, write=True)


def may_create_some(actor: User) -> bool:
    """Return whether the actor can create accounts for any address."""
    return actor.administers or bool(settings.BERTH_MAIL and settings.BERTH_OWNER_INVITATION_DOMAINS)


def _results(
    actor: User,
    team: Team,
    people: Sequence[InvitationLine],
    default_role: str,
    may_create: bool,
    *,
    write: bool,
) -> list[LineResult]:
    policies.require_manage_team(actor, team)
    policies.require_not_being_deleted(team)
    _require_role(default_role)
    if len(people) > MAX_PEOPLE:
        raise list_too_long()
    batch = _Batch(actor, team, may_create, write, people)
    return [batch.result(line, line.role or default_role) for line in people]


def _require_role(role: str) -> None:
    if role not in Role.values:
        reason = Reason(AccountCode.NO_SUCH_ROLE, {"role": role})
        raise InvalidInput(reason, errors={"role": [Reason(AccountCode.CHOOSE_A_ROLE)]})


class _Batch:
    """The lines of one list. Accounts are read in a few queries; the services check again when they write."""

    def __init__(
        self, actor: User, team: Team, may_create: bool, write: bool, people: Sequence[InvitationLine]
    ) -> None:
        self.actor, self.team, self.may_create, self.write = actor, team, may_create, write
        names = {line.who.lower() for line in people}
        matches = User.objects.not_deleted().annotate(address=models.functions.Lower("email"))
        accounts = list(matches.filter(Q(username__in=names) | Q(address__in=names - {""})))
        self.by_name = {user.username: user for user in accounts}
        self.by_address = {user.email.lower(): user for user in accounts if user.email}
        members = Membership.objects.filter(team=team, user__in=accounts)
        self.memberships: dict[UUID, Membership] = {row.user_id: row for row in members}
        self.seen: dict[str, int] = {}
        self.new: set[str] = set()
        invited = [line.who for line in people if "@" in line.who and line.who.lower() not in self.by_address]
        self.taken_names = taken_account_names(invited)
        self.created_today = 0 if actor.administers else _created_today(actor)

    def result(self, line: InvitationLine, role: str) -> LineResult:
        try:
            person = self._person(line)
            self._require_first(line, person)
            return self._add_or_invite(line, person, role)
        except PortalError as error:
            return LineResult(line, Outcome.REFUSED, role, error=error)
        except DatabaseError as error:
            # Continue with the other lines; the result lists which of them succeeded.
            unavailable = storage.unavailable_error(error)
            if unavailable is None:
                raise
            return LineResult(line, Outcome.REFUSED, role, error=unavailable)

    def _person(self, line: InvitationLine) -> Person:
        if line.excess:
            raise InvalidInput(Reason(InvitationCode.TOO_MANY_COLUMNS))
        name = line.who.lower()
        if "@" not in line.who:
            user = self.by_name.get(name)
            if user is None:
                reason = Reason(InvitationCode.NEW_ACCOUNT_NEEDS_ADDRESS, {"username": line.who})
                raise InvalidInput(reason)
            return self._person_of(user)
        _require_address(line.who)
        user = self.by_address.get(name)
        if user is None:
            return Person(None, line.who)
        if not user.email_confirmed:
            # Users can enter any address in their own accounts, including other people's.
            raise StateConflict(Reason(InvitationCode.ADDRESS_NOT_CONFIRMED, {"address": line.who}))
        return self._person_of(user)

    def _person_of(self, user: User) -> Person:
        return Person(user, membership=self.memberships.get(user.pk))

    def _require_first(self, line: InvitationLine, person: Person) -> None:
        key = person.user.username if person.user is not None else person.address.lower()
        if key in self.seen:
            raise InvalidInput(Reason(InvitationCode.LISTED_BEFORE, {"line": self.seen[key]}))
        self.seen[key] = line.number

    def _add_or_invite(self, line: InvitationLine, person: Person, role: str) -> LineResult:
        _require_role(role)
        if person.user is None:
            return self._invite(line, person.address, role)
        user = person.user
        if person.membership is not None:
            return LineResult(line, Outcome.ALREADY_MEMBER, person.membership.role, user.username)
        if not user.is_active:
            raise StateConflict(Reason(AccountCode.USER_DEACTIVATED, {"username": user.username}))
        policies.require_person(user)
        policies.require_role_for(user, role)
        if self.write:
            # Users who have become members meanwhile keep that role.
            services.set_member(
                actor=self.actor, team=self.team, username=user.username, role=role, expected=NEW_MEMBER
            )
        return LineResult(line, Outcome.ADDED, role, user.username)

    def _invite(self, line: InvitationLine, address: str, role: str) -> LineResult:
        if not self.may_create:
            raise NotAllowed(Reason(InvitationCode.NEW_ACCOUNT_NEEDS_SCOPE, {"address": address}))
        _require_may_create(self.actor, address)
        if not self.actor.administers and self.created_today + len(self.new) >= MAX_NEW_A_DAY:
            raise StateConflict(Reason(InvitationCode.TOO_MANY_INVITATIONS, {"max": MAX_NEW_A_DAY}))
        if not self.write:
            username = free_account_name(address, self.taken_names)
            self._add_new(username)
            return LineResult(line, Outcome.INVITED, role, username)
        link = self._create(address, role)
        self._add_new(link.user.username)
        # A link lets its holder act as the invited person, so owners do not see it.
        shown = link if self.actor.administers else None
        return LineResult(line, Outcome.INVITED, role, link.user.username, link=shown, mailed=link.mailed)

    def _add_new(self, username: str) -> None:
        self.new.add(username)
        self.taken_names.add(username)

    def _create(self, address: str, role: str) -> users.Link:
        try:
            with transaction.atomic():
                user = users.create(
                    actor=self.actor,
                    username=free_account_name(address, self.taken_names),
                    email=address,
                    teams={self.team.slug: role},
                    require_allowed=lambda _actor: _require_may_create(self.actor, address),
                )
                return users.make_link(user, LinkKind.INVITATION)
        # Another request has taken the address or name since the accounts were read.
        except IntegrityError as error:
            if not violates(error, User, "username", "user_email_unique"):
                raise
            raise StateConflict(Reason(InvitationCode.TAKEN_MEANWHILE)) from error
        except InvalidInput as error:
            if not error.extra.get("errors", {}).keys() <= {"username", "email"}:
                raise
            raise StateConflict(Reason(InvitationCode.TAKEN_MEANWHILE)) from error


def _require_address(address: str) -> None:
    """Raise `InvalidInput` for an invalid address, and for one that yields no account name."""
    try:
        # Case folding maps some other letters to ASCII.
        if not address.isascii():
            raise ValidationError("")
        validate_email(address)
    except ValidationError:
        pass
    else:
        if name_base(address):
            return
    raise InvalidInput(Reason(InvitationCode.ADDRESS_NOT_VALID, {"address": address}))


def _require_may_create(actor: User, address: str) -> None:
    """Raise `NotAllowed` unless the actor may create an account for the address.

    Administrators may create any. Others may if the site lists the domain and sends mail, because then only
    the owner of the address gets the link.
    """
    if actor.administers:
        return
    domain = address.rpartition("@")[2].lower()
    allowed = settings.BERTH_OWNER_INVITATION_DOMAINS
    if not settings.BERTH_MAIL or not ({"*", domain} & allowed):
        raise NotAllowed(Reason(InvitationCode.CANNOT_CREATE_ACCOUNTS, {"address": address}))


def _created_today(actor: User) -> int:
    since = timezone.now() - timedelta(days=1)
    return Event.objects.filter(kind=AuditKind.USER_INVITED, actor=actor, at__gt=since).count()
