"""The audit log: who did what, when, and why."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


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
    reason = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.actor_label} {self.sentence}"

    @property
    def sentence(self) -> str:
        """What was done, and why where that is known."""
        return f"{self.message}: {self.reason}" if self.reason else self.message


class TargetKind(models.TextChoices):
    """What an entry may be about, besides its workspace, team and pool."""

    DEVICE = "device", "Device"
    NODE = "node", "Node"
    QUOTA_REQUEST = "quota_request", "Quota request"


class EventTarget(models.Model):
    """One thing that an entry is about; an entry about several devices has one row for each.

    `key` is the UUID of a device as the driver gives it, the name of a node within the entry's pool, or
    the id of a request. It is no foreign key, for an entry outlives what it is about.
    """

    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="targets")
    kind = models.CharField(max_length=16, choices=TargetKind)
    key = models.CharField(max_length=255)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "key", "event"], name="event_target_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class Notification(models.Model):
    """Something that a user is to know: shown in the portal, and sent by e-mail where there is an address.

    `mail_due_at` is when the e-mail is to be sent (again); None when there is none to send any more.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    at = models.DateTimeField()
    kind = models.CharField(max_length=60)
    title = models.CharField(max_length=200)
    body = models.TextField(blank=True)
    url = models.CharField(
        max_length=300, blank=True, help_text=_("A path in the portal: the one next action.")
    )
    read_at = models.DateTimeField(null=True, blank=True)
    mail_due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    mail_attempts = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["user", "read_at"], name="notification_unread")]

    def __str__(self) -> str:
        return self.title
