"""Models of channels and their messages."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.common.events.models import Cursor
from portal.people.accounts.models import Team


class Channel(models.Model):
    """A channel of a user, for their notices, or of a team, for its events.

    `url` is encrypted. `kinds` are notice subjects for users and event types for teams. `failures` counts
    consecutive failures since `failing_since`. No attempts are made until `not_before`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="channels"
    )
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="channels")
    name = models.CharField(max_length=80)
    service = models.CharField(max_length=60, help_text=_("Name of the service, such as “Slack”."))
    url = models.TextField(editable=False)
    kinds = models.JSONField(default=list)
    enabled = models.BooleanField(default=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name", "pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=True, team__isnull=False) | Q(user__isnull=False, team__isnull=True),
                name="channel_of_a_user_or_a_team",
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def version_state(self) -> tuple[object, ...]:
        """State for optimistic locking (`portal.common.etags`)."""
        return (self.pk, self.name, self.url, self.kinds, self.enabled)


class MessageState(models.TextChoices):
    """State of a message."""

    PENDING = "pending", _("Pending")
    SENT = "sent", _("Sent")
    FAILED = "failed", _("Given up")


class Message(models.Model):
    """A message for one channel. `due_at` is the time of the next attempt, or None.

    `error` is a code; `answer` is the beginning of the service's response to the last attempt.
    """

    id = models.BigAutoField(primary_key=True)
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="messages")
    kind = models.CharField(max_length=60, help_text="Type of the event that it is about; `test` for a test.")
    title = models.CharField(max_length=200, help_text="Title of the message.")
    body = models.TextField(blank=True)
    url = models.CharField(max_length=300, blank=True)
    state = models.CharField(max_length=10, choices=MessageState, default=MessageState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Number of attempts.")
    due_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    status_code = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="HTTP status of the response; null without a response."
    )
    error = models.CharField(
        max_length=20,
        blank=True,
        help_text="Response to the last failed attempt; empty once delivered.",
    )
    answer = models.TextField(blank=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(fields=["due_at"], name="channel_message_due", condition=Q(due_at__isnull=False))
        ]

    def __str__(self) -> str:
        return self.title


class TeamFeed(Cursor):
    """Single row: cursor of the feed for team channels, and lease of the worker (`busy_until`)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    busy_until = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"channels at {self.last_id}"
