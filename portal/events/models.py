"""The audit log: who did what, when, and why."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Event(models.Model):
    """One entry, written in the same transaction as the change it tells of, and never changed."""

    at = models.DateTimeField(db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="events"
    )
    actor_label = models.CharField(max_length=80)
    kind = models.CharField(max_length=60, db_index=True)
    workspace = models.ForeignKey(
        "workspaces.Workspace", null=True, on_delete=models.PROTECT, related_name="events"
    )
    team = models.ForeignKey("accounts.Team", null=True, on_delete=models.SET_NULL, related_name="events")
    pool = models.ForeignKey("inventory.Pool", null=True, on_delete=models.SET_NULL, related_name="events")
    message = models.TextField()
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.actor_label} {self.message}"
