"""Models of the audit log and of notices."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import reason_of, sentence_of
from portal.common.request_context import MAX_USER_AGENT


class Event(models.Model):
    """An audit log entry, written in the transaction of the change and never modified.

    The cause is `reason`, in the actor's own words, or `cause`, the portal's reason (`code`, `params`).
    """

    at = models.DateTimeField(db_index=True, help_text="When it happened.")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="events"
    )
    actor_label = models.CharField(max_length=80)
    kind = models.CharField(
        max_length=60, db_index=True, help_text="Type of the event, such as `workspace.started`."
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
    # Origin of the request; empty for actions of the portal itself.
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
        """Insert the entry. Raises `TypeError` for an existing one, because entries are immutable."""
        if not self._state.adding:
            raise TypeError("an entry of the audit log is never changed")
        super().save(*args, **kwargs)

    @property
    def sentence(self) -> str:
        """The message, with the reason if there is one."""
        return f"{self.message}: {self.why}" if self.why else self.message

    @property
    def why(self) -> str:
        """The reason as text in the active language, or ""."""
        cause = reason_of(self.cause) if self.cause else None
        return self.reason or (sentence_of(cause) if cause is not None else "")


class TargetKind(models.TextChoices):
    """Kinds of objects that an entry may be about, besides its workspace, team and pool."""

    DEVICE = "device", "Device"
    NODE = "node", "Node"
    QUOTA_REQUEST = "quota_request", "Quota request"
    USER = "user", "User"


class EventTarget(models.Model):
    """One object that an entry is about. An entry about several devices has one row per device.

    `key` is the UUID of a device as reported by the driver, the name of a node within the entry's pool, or
    the id of a request or user. Not a foreign key, because entries outlive their targets.
    """

    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="targets")
    kind = models.CharField(max_length=16, choices=TargetKind)
    key = models.CharField(max_length=255)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "key", "event"], name="event_target_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class AuditSeal(models.Model):
    """A seal over the entries after the previous seal, up to `last_id`. Chained to the previous seal.

    `entries_digest` covers the entries; `digest` covers the seal and is keyed with the portal's secret key.
    When entries are deleted after their retention time, their seal stays, with `pruned_at`.
    """

    number = models.PositiveBigIntegerField(primary_key=True)
    first_id = models.PositiveBigIntegerField()
    last_id = models.PositiveBigIntegerField()
    count = models.PositiveIntegerField()
    entries_digest = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    newest_at = models.DateTimeField(help_text=_("Time of its newest entry."))
    sealed_at = models.DateTimeField()
    pruned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"seal {self.number}"


class Notification(models.Model):
    """A notice to a user, shown in the portal and sent by e-mail if the user has an address.

    `mail_due_at` is the time of the next delivery attempt; None if no e-mail is due.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    at = models.DateTimeField(help_text="When it happened.")
    kind = models.CharField(max_length=60, help_text="Subject of the notice, as a code.")
    title = models.CharField(max_length=200, help_text="Title of the notice.")
    body = models.TextField(blank=True, help_text="Text of the notice.")
    url = models.CharField(max_length=300, blank=True, help_text=_("Path in the portal for the next action."))
    read_at = models.DateTimeField(null=True, blank=True, help_text="When it was read.")
    mail_due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    mail_attempts = models.PositiveSmallIntegerField(default=0)
    repeats = models.PositiveIntegerField(
        default=0, help_text=_("Number of similar events included in this notice.")
    )

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["user", "read_at"], name="notification_unread")]

    def __str__(self) -> str:
        return self.title


class Cursor(models.Model):
    """A reader's position in the audit log, in id order. `portal.common.events.feed` moves it.

    Entries up to `last_id` have been read. No entry with an id up to `settled_id` can appear any more.
    `horizon_id` was the newest id at `horizon_at`; it is settled once all transactions from then have ended.
    """

    last_id = models.PositiveBigIntegerField(default=0)
    settled_id = models.PositiveBigIntegerField(default=0)
    horizon_id = models.PositiveBigIntegerField(default=0)
    horizon_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class AuditStream(Cursor):
    """Progress of streaming the audit log to a receiver. `name` is `syslog` or `webhook`.

    `failures` counts consecutive failures. `last_error` is a code, or empty. `busy_until` is the lease of the
    worker that sends. A failed receiver is not contacted until `not_before`.
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
