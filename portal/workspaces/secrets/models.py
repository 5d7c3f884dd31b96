"""Models of secrets: they belong to a user, a team or a template."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import Template
from portal.people.accounts.models import Team, User
from portal.workspaces.secrets.names import MAX_NAME
from portal.workspaces.secrets.places import MAX_KEY, MAX_PATH

Holder = User | Team | Template


class SecretKind(models.TextChoices):
    """How a workspace receives a secret."""

    ENV = "env", _("Environment variable")
    FILE = "file", _("File")


class Source(models.TextChoices):
    """Kind of a secret's holder, in order of precedence for equal names."""

    USER = "user", _("Yours")
    TEAM = "team", _("The team's")
    TEMPLATE = "template", _("The template's")


class Secret(models.Model):
    """One secret of exactly one holder.

    `sealed` is its value, encrypted for this row alone. Alternatively, `vault_path` and `vault_key` say where
    the value is in Vault, and no value is stored here. `version` counts changes of the value or its path.
    With `everywhere`, all workspaces of its user or team get the secret, else only those that name it; a
    template's secret goes to all workspaces of the template.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets")
    template = models.ForeignKey(
        Template, null=True, blank=True, on_delete=models.CASCADE, related_name="secrets"
    )
    name = models.CharField(max_length=MAX_NAME)
    kind = models.CharField(
        max_length=4,
        choices=SecretKind,
        default=SecretKind.ENV,
        help_text="Whether workspaces get it as an environment variable or as a file.",
    )
    sealed = models.TextField(editable=False)
    vault_path = models.CharField(max_length=MAX_PATH, blank=True, default="")
    vault_key = models.CharField(max_length=MAX_KEY, blank=True, default="")
    size_bytes = models.PositiveIntegerField()
    version = models.PositiveIntegerField(default=1)
    description = models.CharField(max_length=200, blank=True)
    everywhere = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(
        default=timezone.now, editable=False, help_text="When it was last changed."
    )
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    updated_at = models.DateTimeField(default=timezone.now, editable=False)
    delivered_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was last delivered to a workspace."
    )
    delivered_to = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, team__isnull=True, template__isnull=True)
                | Q(user__isnull=True, team__isnull=False, template__isnull=True)
                | Q(user__isnull=True, team__isnull=True, template__isnull=False),
                name="secret_of_one_holder",
            ),
            models.CheckConstraint(
                condition=(Q(vault_path="", vault_key="") & ~Q(sealed=""))
                | (Q(sealed="") & ~Q(vault_path="") & ~Q(vault_key="")),
                name="secret_here_or_in_vault",
            ),
            models.UniqueConstraint(fields=["user", "name"], name="secret_of_user_unique"),
            models.UniqueConstraint(fields=["team", "name"], name="secret_of_team_unique"),
            models.UniqueConstraint(fields=["template", "name"], name="secret_of_template_unique"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def holder(self) -> Holder:
        """The user, team or template that the secret belongs to."""
        holder = self.user or self.team or self.template
        assert holder is not None  # ensured by a constraint
        return holder

    @property
    def in_vault(self) -> bool:
        """Whether its value is stored in Vault."""
        return self.vault_path != ""

    @property
    def source(self) -> Source:
        """The kind of its holder."""
        if self.user_id is not None:
            return Source.USER
        return Source.TEAM if self.team_id is not None else Source.TEMPLATE


def columns_of(holder: Holder) -> dict[str, Holder]:
    """Return the column of `Secret` for this holder."""
    match holder:
        case User():
            return {"user": holder}
        case Team():
            return {"team": holder}
        case _:
            return {"template": holder}


def purpose_of(secret: Secret) -> str:
    """Return the row's encryption purpose, so that a value copied to another row cannot be decrypted."""
    return f"workspace_secrets.secret.{secret.pk}"
