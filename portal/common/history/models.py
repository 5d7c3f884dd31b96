"""Revisions: earlier versions of configuration objects."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class SubjectKind(models.TextChoices):
    """Kind of object with revisions."""

    TEMPLATE = "template", _("Template")
    FLAVOR = "flavor", _("Flavor")
    POOL = "pool", _("Pool")
    TEAM = "team", _("Team")
    RECLAIM = "reclaim", _("Reclaim policy")


class ChangeAction(models.TextChoices):
    """Change that created the revision."""

    FOUND = "found", _("Initial state")
    CREATED = "created", _("Created")
    CHANGED = "changed", _("Changed")
    RESTORED = "restored", _("Restored")
    DELETED = "deleted", _("Deleted")


class Revision(models.Model):
    """The state of one object after a change. `data` is its JSON document, without secrets.

    `restored_from` is the number of the revision that was restored.
    """

    kind = models.CharField(max_length=12, choices=SubjectKind)
    key = models.UUIDField()
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="revisions"
    )
    actor_label = models.CharField(max_length=80)
    act = models.CharField(max_length=10, choices=ChangeAction)
    restored_from = models.PositiveIntegerField(null=True, blank=True)
    data = models.JSONField()

    class Meta:
        ordering = ["kind", "key", "-number"]
        constraints = [models.UniqueConstraint(fields=["kind", "key", "number"], name="revision_unique")]

    def __str__(self) -> str:
        return f"{self.kind} {self.key} {self.number}"
