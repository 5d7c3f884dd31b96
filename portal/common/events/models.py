"""The audit log: who did what, when, and why."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.common.origins import MAX_USER_AGENT
from portal.common.reasons.wording import reason_of, sentence_of


class Event(models.Model):
    """One entry, written in the same transaction as the change it tells of, and never changed.

    Why it was done is `reason` in the actor's own words, or `cause`, the portal's reason (`code`, `params`).
    """

    at = models.DateTimeField(db_index=True, help_text="When it happened.")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="events"
    )
    actor_label = models.CharField(max_length=80)
    kind = models.CharField(
        max_length=60, db_index=True, help_text="Type of the event, as `workspace.started`."
    )
    workspace = models.ForeignKey(
        "workspaces.Workspace", null=True, on_delete=models.PROTECT, related_name="events"
    )
    team = models.ForeignKey("accounts.Team", null=True, on_delete=models.SET_NULL, related_name="events")
    pool = models.ForeignKey("inventory.Pool", null=True, on_delete=models.SET_NULL, related_name="events")
    message = models.TextField()
    reason = models.TextField(blank=True)
    cause = models.JSONField(default=dict, blank=True)
    data = models.JSONField(default=dict, help_text="Details of the event by name. Names are only added.")
    # Where the request came from that did it; empty for what the portal did by itself.
    address = models.GenericIPAddressField(null=True, blank=True, help_text="IP address of the client.")
    user_agent = models.CharField(
        max_length=MAX_USER_AGENT, blank=True, help_text="User agent of the client."
    )
    request_id = models.CharField(
        max_length=64, blank=True, help_text="Id of the HTTP request, as in the portal's log."
    )
    token = models.CharField(
        max_length=16, blank=True, help_text="Name of the token that was used; empty for none."
    )

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.actor_label} {self.sentence}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write a new entry. Raises `TypeError` for one that has been written: none is ever changed."""
        if not self._state.adding:
            raise TypeError("an entry of the audit log is never changed")
        super().save(*args, **kwargs)

    @property
    def sentence(self) -> str:
        """What was done, and why where that is known."""
        return f"{self.message}: {self.why}" if self.why else self.message

    @property
    def why(self) -> str:
        """Why it was done, as text in the present language; empty where nothing is known."""
        cause = reason_of(self.cause) if self.cause else None
        return self.reason or (sentence_of(cause) if cause is not None else "")


class TargetKind(models.TextChoices):
    """What an entry may be about, besides its workspace, team and pool."""

    DEVICE = "device", "Device"
    NODE = "node", "Node"
    QUOTA_REQUEST = "quota_request", "Quota request"
    USER = "user", "User"


class EventTarget(models.Model):
    """One thing that an entry is about; an entry about several devices has one row for each.

    `key` is the UUID of a device as the driver gives it, the name of a node within the entry's pool, or
    the id of a request or user. It is no foreign key, for an entry outlives what it is about.
    """

    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="targets")
    kind = models.CharField(max_length=16, choices=TargetKind)
    key = models.CharField(max_length=255)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "key", "event"], name="event_target_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class AuditSeal(models.Model):
    """A seal over the entries up to `last_id` that none before it covers: each holds the one before it.

    `entries_digest` is of the entries, `digest` of the seal, keyed with the portal's secret key. Entries
    that were deleted when their time was over leave their seal, with `pruned_at`.
    """

    number = models.PositiveBigIntegerField(primary_key=True)
    first_id = models.PositiveBigIntegerField()
    last_id = models.PositiveBigIntegerField()
    count = models.PositiveIntegerField()
    entries_digest = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    newest_at = models.DateTimeField(help_text=_("When the youngest of its entries was written."))
    sealed_at = models.DateTimeField()
    pruned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"seal {self.number}"


class Notification(models.Model):
    """Something that a user is to know: shown in the portal, and sent by e-mail where there is an address.

    `mail_due_at` is when the e-mail is to be sent (again); None when there is none to send any more.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    at = models.DateTimeField(help_text="When it happened.")
    kind = models.CharField(max_length=60, help_text="Subject of the notice, as a code.")
    title = models.CharField(max_length=200, help_text="Title of the notice.")
    body = models.TextField(blank=True, help_text="Text of the notice.")
    url = models.CharField(
        max_length=300, blank=True, help_text=_("A path in the portal: the one next action.")
    )
    read_at = models.DateTimeField(null=True, blank=True, help_text="When it was read.")
    mail_due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    mail_attempts = models.PositiveSmallIntegerField(default=0)
    repeats = models.PositiveIntegerField(
        default=0, help_text=_("How many more like it there were, which wrote no notice of their own.")
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["user", "read_at"], name="notification_unread")]

    def __str__(self) -> str:
        return self.title


class Cursor(models.Model):
    """How far somebody has read the audit log, in the order of its ids; `portal.common.events.feed` moves it.

    `last_id` has been read, `settled_id` is the newest id up to which no entry can appear any more.
    `horizon_id` was the newest at `horizon_at`: it is settled once no transaction from then is left.
    """

    last_id = models.PositiveBigIntegerField(default=0)
    settled_id = models.PositiveBigIntegerField(default=0)
    horizon_id = models.PositiveBigIntegerField(default=0)
    horizon_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class AuditStream(Cursor):
    """How far the audit log has been sent on to a receiver: `name` is `syslog` or `webhook`.

    `failures` counts those in a row, `last_error` is a code and empty when all is well. `busy_until` is until
    when a worker is at it, `not_before` how long a receiver that failed is left alone.
    """

    name = models.CharField(max_length=16, primary_key=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=30, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True)
    busy_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return f"{self.name} at {self.last_id}"
