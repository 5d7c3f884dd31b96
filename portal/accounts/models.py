"""Who uses the portal, in which team, and with which tokens."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_validator, username_validator


class User(AbstractUser):
    """A person or a service account. Signs in by name; the name is also a folder of the home volume."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    username = models.CharField(
        _("name"),
        max_length=32,
        unique=True,
        validators=[username_validator],
        error_messages={"unique": _("This name is taken.")},
    )
    email = models.EmailField(_("e-mail"), blank=True)
    is_operator = models.BooleanField(default=False, help_text=_("Runs the pools."))
    is_approver = models.BooleanField(default=False, help_text=_("Decides quota requests."))
    mail_notices = models.BooleanField(default=True, help_text=_("Notices come by e-mail too."))

    class Meta:
        constraints = [
            models.UniqueConstraint(
                Lower("email"),
                name="user_email_unique",
                condition=~models.Q(email=""),
                violation_error_message=_("This e-mail address is in use."),
            )
        ]

    @property
    def operates(self) -> bool:
        """Whether the user runs the pools: an operator or the administrator."""
        return self.is_active and (self.is_operator or self.is_superuser)


class Team(models.Model):
    """Who pays. Every workspace is charged to one team."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(
        max_length=40,
        unique=True,
        validators=[slug_validator],
        error_messages={"unique": _("This short name is taken.")},
    )
    name = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)
    members = models.ManyToManyField(User, through="Membership", related_name="teams")

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """A member's rights in a team."""

    MEMBER = "member", _("Member")
    OWNER = "owner", _("Owner")


class Membership(models.Model):
    """A user's place in a team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    joined_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["user__username"]
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="membership_unique")]

    def __str__(self) -> str:
        return f"{self.user} in {self.team}"


class ApiToken(models.Model):
    """A secret for programs. Only its SHA-256 is kept: the secret has 256 random bits of its own."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Delegation(models.Model):
    """While it lasts, `delegate` may decide requests in place of `approver`."""

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
