"""Models of webhooks, deliveries and attempts."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.common.events.models import Cursor
from portal.people.accounts.models import Team


class Endpoint(models.Model):
    """A receiver of events of a team, or of the site if `team` is None.

    - `sensitive`: it receives types for administrators.
    - `secret`, `previous_secret`: encrypted. The previous one also signs until `previous_until`.
    - `failing_since`: time of the first of the consecutive failures.
    - `timeouts`: number of consecutive failures that occupied a thread.
    - `not_before`: no attempts are made until then.
    - `slow`: the last response took long.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks")
    name = models.CharField(max_length=80)
    url = models.CharField(max_length=1000)
    types = models.JSONField(default=list)
    sensitive = models.BooleanField(default=False)
    secret = models.TextField(editable=False)
    previous_secret = models.TextField(blank=True, editable=False)
    previous_until = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    disabled_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    timeouts = models.PositiveIntegerField(default=0)
    slow = models.BooleanField(default=False)
    not_before = models.DateTimeField(null=True, blank=True)
    served_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def version_state(self) -> tuple[object, ...]:
        """State for optimistic locking (`portal.common.etags`)."""
        return (self.pk, self.name, self.url, self.types, self.enabled)


class DeliveryState(models.TextChoices):
    """State of a delivery."""

    PENDING = "pending", _("Pending")
    DELIVERED = "delivered", _("Delivered")
    FAILED = "failed", _("Given up")


class Delivery(models.Model):
    """An event for one endpoint, with its payload. `due_at` is the time of the next attempt, or None.

    `entry_id` is the id of the audit entry, or None for a test.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, related_name="deliveries")
    entry_id = models.PositiveBigIntegerField(null=True, blank=True)
    type = models.CharField(max_length=60, help_text="Type of the event, such as `workspace.started`.")
    payload = models.JSONField(help_text="The JSON that is sent.")
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.PENDING)
    attempt_count = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "deliveries"
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "entry_id"], name="delivery_once_for_an_entry")
        ]
        indexes = [
            models.Index(fields=["due_at"], name="delivery_due", condition=Q(due_at__isnull=False)),
            models.Index(fields=["endpoint", "-created_at"], name="delivery_log"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"

    @property
    def message_id(self) -> str:
        """Id of the message for the receiver, the same for every attempt."""
        return f"msg_{self.pk.hex}"

    @property
    def is_test(self) -> bool:
        return self.entry_id is None


class Attempt(models.Model):
    """An attempt to deliver: the response, or an error code if there was none."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField(help_text="Which attempt it is, from 1.")
    at = models.DateTimeField(help_text="When it was sent.")
    duration_ms = models.PositiveIntegerField(help_text="Duration in milliseconds.")
    status_code = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="HTTP status of the response; null without a response."
    )
    answer = models.TextField(blank=True)
    error = models.CharField(
        max_length=20, blank=True, help_text="Why it failed, in words; empty if it did not."
    )

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.delivery_id}"


class Outbox(Cursor):
    """Single row: cursor of the fan-out, and lease of the worker (`busy_until`)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    busy_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "outboxes"

    def __str__(self) -> str:
        return f"outbox at {self.last_id}"
