"""Models of users, teams, memberships and API tokens."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import ClassVar

from django.conf import settings
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import AbstractUser
from django.contrib.auth.models import UserManager as DjangoUserManager
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from portal.common.names import SERVICE_PREFIX, slug_validator, username_validator
from portal.common.request_context import MAX_USER_AGENT


class AccountState(models.TextChoices):
    """Lifecycle state of an account."""

    INVITED = "invited", _("Invited")
    ACTIVE = "active", _("Active")
    DEACTIVATED = "deactivated", _("Deactivated")
    DELETED = "deleted", _("Deleted")


class AccountKind(models.TextChoices):
    """Kind of account."""

    PERSON = "person", _("Person")
    SERVICE = "service", _("Service account")


class SiteRole(models.TextChoices):
    """A role in the whole portal, besides roles in teams."""

    ADMINISTRATOR = "administrator", _("Administrator")
    OPERATOR = "operator", _("Operator")
    APPROVER = "approver", _("Approver")
    AUDITOR = "auditor", _("Auditor")


class SecondFactor(models.TextChoices):
    """Kinds of second factors."""

    TOTP = "totp", _("App")
    PASSKEY = "passkey", _("Passkey")


ROLE_FIELDS = {
    SiteRole.ADMINISTRATOR: "is_superuser",
    SiteRole.OPERATOR: "is_operator",
    SiteRole.APPROVER: "is_approver",
    SiteRole.AUDITOR: "is_auditor",
}


HAS_PASSWORD = ~Q(password__startswith=UNUSABLE_PASSWORD_PREFIX)


class UserQuerySet(models.QuerySet["User"]):
    def not_deleted(self) -> UserQuerySet:
        """Return accounts that are not deleted."""
        return self.filter(deleted_at=None)

    def with_state(self, state: str) -> UserQuerySet:
        """Return accounts in this state; none for an unknown state."""
        present = self.not_deleted()
        match state:
            case AccountState.INVITED:
                return present.people().filter(is_active=True, linked=False).exclude(HAS_PASSWORD)
            case AccountState.ACTIVE:
                signs_in = HAS_PASSWORD | Q(linked=True) | Q(owning_team__isnull=False)
                return present.filter(signs_in, is_active=True)
            case AccountState.DEACTIVATED:
                return present.filter(is_active=False)
            case AccountState.DELETED:
                return self.exclude(deleted_at=None)
            case _:
                return self.none()

    def people(self) -> UserQuerySet:
        """Return all accounts except service accounts."""
        return self.filter(owning_team=None)

    def service_accounts(self) -> UserQuerySet:
        """Return service accounts."""
        return self.filter(owning_team__isnull=False)

    def of_kind(self, kind: str) -> UserQuerySet:
        """Return accounts of this kind; none for an unknown kind."""
        match kind:
            case AccountKind.PERSON:
                return self.people()
            case AccountKind.SERVICE:
                return self.service_accounts()
            case _:
                return self.none()

    def with_role(self, role: str) -> UserQuerySet:
        """Return users with this site role; none for an unknown role."""
        column = ROLE_FIELDS.get(SiteRole(role)) if role in SiteRole.values else None
        return self.filter(**{column: True}) if column else self.none()


class UserManager(DjangoUserManager["User"].from_queryset(UserQuerySet)):  # type: ignore[misc]
    """Django's user manager with the methods of `UserQuerySet`."""


class User(AbstractUser):
    """A person or a service account. The name is also a folder in the home volume.

    People sign in by name. A service account has an `owning_team`, a name that begins with `SERVICE_PREFIX`
    and membership only in that team. It never signs in: programs authenticate by its tokens
    (docs/adr/0022-service-accounts.md).

    The row of a deleted account stays, so that records can name it and no new account gets the name and its
    homes.

    - `session_salt`: part of the signature of sessions and links. A new salt invalidates them all.
    - `email_confirmed`: an administrator or sign-in provider set the address, not the user.
    - `linked`: the user signs in through a sign-in provider.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    username = models.CharField(
        _("name"),
        max_length=32,
        unique=True,
        validators=[username_validator],
        error_messages={"unique": _("Name already in use. Choose another.")},
    )
    email = models.EmailField(_("e-mail"), blank=True)
    is_operator = models.BooleanField(default=False, help_text=_("Manages pools."))
    is_approver = models.BooleanField(default=False, help_text=_("Decides quota requests."))
    is_auditor = models.BooleanField(default=False, help_text=_("Has read-only access to everything."))
    owning_team = models.ForeignKey(
        "Team",
        null=True,
        blank=True,
        editable=False,
        on_delete=models.PROTECT,
        related_name="service_accounts",
        help_text=_("The team that a service account belongs to."),
    )
    description = models.CharField(max_length=200, blank=True, editable=False)
    mail_notices = models.BooleanField(default=True, help_text=_("Notices are also sent by e-mail."))
    email_confirmed = models.BooleanField(default=False, editable=False)
    linked = models.BooleanField(default=False, editable=False)
    session_salt = models.CharField(max_length=32, blank=True, default="", editable=False)
    # Time of the first second factor. Maintained by `portal.people.accounts.mfa.services`.
    mfa_since = models.DateTimeField(null=True, blank=True, editable=False)
    deactivated_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the account was deactivated."
    )
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                Lower("email"),
                name="user_email_unique",
                condition=~models.Q(email=""),
                violation_error_message=_("E-mail address already in use."),
            ),
            models.CheckConstraint(
                name="user_auditor_holds_no_other_role",
                condition=Q(is_auditor=False) | Q(is_superuser=False, is_operator=False, is_approver=False),
            ),
            models.CheckConstraint(
                name="user_service_account_holds_no_role",
                condition=Q(owning_team=None)
                | Q(is_superuser=False, is_operator=False, is_approver=False, is_auditor=False, email=""),
            ),
        ]

    def clean(self) -> None:
        """Reserve names with `SERVICE_PREFIX` for service accounts. Raises `ValidationError`."""
        super().clean()
        if self._state.adding and self.username.startswith(SERVICE_PREFIX) is not self.is_service:
            raise ValidationError(
                {"username": _("Names that start with “svc-” are reserved for service accounts.")}
            )

    @property
    def is_service(self) -> bool:
        """Whether this is a service account."""
        return self.owning_team_id is not None

    @property
    def kind(self) -> AccountKind:
        """Person or service account."""
        return AccountKind.SERVICE if self.is_service else AccountKind.PERSON

    @property
    def operates(self) -> bool:
        """Whether the user runs the pools: operators and administrators."""
        return self.is_active and (self.is_operator or self.is_superuser)

    @property
    def administers(self) -> bool:
        """Whether the user is an active administrator."""
        return self.is_active and self.is_superuser

    @property
    def sees_all(self) -> bool:
        """Whether the user may read everything of every team: operators, administrators, auditors."""
        return self.operates or (self.is_active and self.is_auditor)

    @property
    def sees_people(self) -> bool:
        """Whether the user may read accounts and the audit log: administrators and auditors."""
        return self.administers or (self.is_active and self.is_auditor)

    @cached_property
    def only_views(self) -> bool:
        """Whether the user cannot start anything: auditors, and viewers in all of their teams."""
        return self.is_auditor or self.team_roles == {Role.VIEWER}

    @cached_property
    def team_roles(self) -> frozenset[str]:
        """The roles that the user has in teams."""
        return frozenset(place.role for place in self.memberships.all())

    @property
    def state(self) -> AccountState:
        """Lifecycle state of the account."""
        if self.deleted_at is not None:
            return AccountState.DELETED
        if not self.is_active:
            return AccountState.DEACTIVATED
        joined = self.is_service or self.has_usable_password() or self.linked
        return AccountState.ACTIVE if joined else AccountState.INVITED

    @property
    def must_set_up_mfa(self) -> bool:
        """Whether a role of the user requires a second factor and none is set up."""
        return self.mfa_since is None and not settings.BERTH_MFA_REQUIRED_FOR.isdisjoint(self.roles)

    @property
    def roles(self) -> list[SiteRole]:
        """Site roles of the user."""
        return [role for role, column in ROLE_FIELDS.items() if getattr(self, column)]

    @property
    def version_state(self) -> tuple[object, ...]:
        """State for optimistic locking (`portal.common.etags`)."""
        places = sorted((str(place.team_id), place.role) for place in self.memberships.all())
        return (self.pk, self.email, self.roles, self.description, places)

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        # Derived from password and salt. Identical to Django's hash if the salt is empty.
        return salted_hmac(
            "django.contrib.auth.models.AbstractBaseUser.get_session_auth_hash",
            self.password + self.session_salt,
            secret=secret,
            algorithm="sha256",
        ).hexdigest()


class TeamEgress(models.TextChoices):
    """Egress policy of a team's workspaces. It can only restrict what pool and node allow."""

    POOL = "", _("As the pool allows")
    LIST = "list", _("Only listed hosts")
    NONE = "none", _("Nothing")


class TeamManager(models.Manager["Team"]):
    """Manager that leaves out deleted teams."""

    def get_queryset(self) -> models.QuerySet[Team]:
        return super().get_queryset().filter(deleted_at=None)


class Team(models.Model):
    """A team. Every workspace is charged to one team.

    `egress` and `egress_allow` apply to all its workspaces, regardless of their template. `updated_at` is the
    time of the last change of these two. An archived team starts no workspaces.

    From `deletion_started_at` on, an archived team has no members, and nothing can be added to it. It is
    deleted once its workspaces and home folders are gone. The row of a deleted team stays for its records,
    with another slug (`slug_when_deleted`). `objects` leaves it out.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(
        max_length=40,
        unique=True,
        validators=[slug_validator],
        error_messages={"unique": _("Slug already in use. Choose another.")},
    )
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)
    egress = models.CharField(
        max_length=4,
        blank=True,
        choices=TeamEgress,
        help_text=_("Maximum network access of workspaces."),
    )
    egress_allow = models.TextField(
        blank=True,
        max_length=4000,
        help_text=_("Hosts such as packages.example or *.example.org, and networks such as 10.1.0.0/16."),
    )
    member_shares = models.BooleanField(
        default=True,
        help_text=_("Whether members take turns in the queue: the one who used least comes first."),
    )
    updated_at = models.DateTimeField(default=timezone.now, editable=False)
    archived_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When it was archived; null for an active team."
    )
    deletion_started_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its deletion started; null for other teams."
    )
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)
    members = models.ManyToManyField(User, through="Membership", related_name="teams")

    objects: ClassVar[TeamManager] = TeamManager()
    with_deleted: ClassVar[models.Manager[Team]] = models.Manager()

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name

    @property
    def slug_when_deleted(self) -> str:
        """The slug of the team once it is deleted. No other slug has an underscore."""
        return f"{self.slug[:31]}_{self.pk.hex[:8]}"


class Role(models.TextChoices):
    """Role of a member in a team. Viewers only read."""

    VIEWER = "viewer", _("Viewer")
    MEMBER = "member", _("Member")
    OWNER = "owner", _("Owner")


class Membership(models.Model):
    """Membership of a user in a team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    joined_at = models.DateTimeField(auto_now_add=True, help_text="When it joined.")

    class Meta:
        ordering = ["user__username"]
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="membership_unique")]

    def __str__(self) -> str:
        return f"{self.user} in {self.team}"

    @property
    def version_state(self) -> tuple[object, ...]:
        """State for optimistic locking (`portal.common.etags`)."""
        return (self.pk, self.role)


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def unrevoked(self) -> ApiTokenQuerySet:
        """Return tokens that are not revoked. They may have expired."""
        return self.filter(revoked_at=None)

    def ending_by(self, moment: datetime) -> ApiTokenQuerySet:
        """Return tokens that expire by `moment`."""
        over = Q(expires_at__lte=moment)
        if settings.BERTH_TOKEN_MAX_DAYS:
            over |= Q(created_at__lte=moment - timedelta(days=settings.BERTH_TOKEN_MAX_DAYS))
        return self.filter(over)

    def valid_at(self, now: datetime) -> ApiTokenQuerySet:
        """Return tokens that are valid at `now`."""
        tokens = self.unrevoked().filter(Q(expires_at=None) | Q(expires_at__gt=now), owner__is_active=True)
        if settings.BERTH_TOKEN_MAX_DAYS:
            tokens = tokens.filter(created_at__gt=now - timedelta(days=settings.BERTH_TOKEN_MAX_DAYS))
        return tokens


class ApiTokenManager(models.Manager["ApiToken"].from_queryset(ApiTokenQuerySet)):  # type: ignore[misc]
    """Manager with the methods of `ApiTokenQuerySet`."""


class ApiToken(models.Model):
    """An API token. Only its SHA-256 is stored, which is sufficient for 256 random bits.

    `created_by` is its user, the manager of a service account, or None after a token exchange. `replaces` is
    the token that it was rotated from. `renewable_until` is set for job tokens, which come from an exchange:
    their `expires_at` moves with each renewal, up to that time. `networks` are those of its first uses
    (`limits.network_of`), up to `token_uses.MAX_NETWORKS`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(
        max_length=16, editable=False, help_text="First characters of the token, to recognise it."
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    renewable_until = models.DateTimeField(
        null=True, blank=True, help_text="Until when a job's token can be renewed; null for other tokens."
    )
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="When it was last used.")
    last_used_from = models.GenericIPAddressField(
        null=True, blank=True, help_text="Address from which it was last used; null if never or unknown."
    )
    networks = models.JSONField(default=list, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.SET_NULL, related_name="tokens_made"
    )
    replaces = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replaced_by"
    )

    objects: ClassVar[ApiTokenManager] = ApiTokenManager()

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["-created_at", "id"], name="token_newest")]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def is_job_token(self) -> bool:
        """Whether it is a job token, issued by a token exchange."""
        return self.renewable_until is not None

    @property
    def ends_at(self) -> datetime | None:
        """Effective expiry: the earlier of `expires_at` and `BERTH_TOKEN_MAX_DAYS`, or None for never."""
        if not settings.BERTH_TOKEN_MAX_DAYS:
            return self.expires_at
        at_most = self.created_at + timedelta(days=settings.BERTH_TOKEN_MAX_DAYS)
        return min(self.expires_at, at_most) if self.expires_at is not None else at_most


class UserSession(models.Model):
    """A browser session, as shown to its user. `key` is the key of Django's session."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sessions")
    key = models.CharField(max_length=40, unique=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField(default=timezone.now)
    address = models.GenericIPAddressField(null=True, blank=True)
    user_agent = models.CharField(max_length=MAX_USER_AGENT, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"session of {self.user_id}"


class Delegation(models.Model):
    """During this time, `delegate` may decide requests on behalf of `approver`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    approver = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="delegations_given"
    )
    delegate = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="delegations_held"
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="delegation_lasts"),
            models.CheckConstraint(condition=~Q(approver=F("delegate")), name="delegation_to_another"),
        ]

    def __str__(self) -> str:
        return f"{self.delegate} for {self.approver}"


class FailureWindow(models.Model):
    """Number of failures since `began_at`. See `portal.people.accounts.limits`."""

    key = models.CharField(max_length=120, unique=True)
    began_at = models.DateTimeField(db_index=True)
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.key}: {self.count}"
