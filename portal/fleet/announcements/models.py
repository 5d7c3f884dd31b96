"""Models of announcements and of their dismissals."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.models import Pool

MAX_TEXT = 500


class AnnouncementKind(models.TextChoices):
    """How urgent an announcement is."""

    INFORMATION = "information", _("Information")
    WARNING = "warning", _("Warning")


class AnnouncementState(models.TextChoices):
    """Whether an announcement is shown, computed from its times."""

    SCHEDULED = "scheduled", _("Scheduled")
    CURRENT = "current", _("Current")
    ENDED = "ended", _("Ended")


class Announcement(models.Model):
    """A short plain text for all users, or for the users of a pool.

    The announcement is shown between `begins_at` and `ends_at`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(
        max_length=12,
        choices=AnnouncementKind,
        default=AnnouncementKind.INFORMATION,
        help_text="`information` can be dismissed by each user; `warning` cannot.",
    )
    text = models.CharField(max_length=MAX_TEXT, help_text="Plain text, up to 500 characters.")
    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="announcements"
    )
    begins_at = models.DateTimeField(help_text="Time from which it is shown.")
    ends_at = models.DateTimeField(
        null=True, blank=True, help_text="Time until which it is shown; null for no end."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-begins_at", "pk"]

    def __str__(self) -> str:
        return self.text

    @property
    def state(self) -> AnnouncementState:
        """The current state."""
        now = timezone.now()
        if self.ends_at is not None and self.ends_at <= now:
            return AnnouncementState.ENDED
        return AnnouncementState.SCHEDULED if self.begins_at > now else AnnouncementState.CURRENT


class Dismissal(models.Model):
    """Records that a user has dismissed an announcement."""

    announcement = models.ForeignKey(Announcement, on_delete=models.CASCADE, related_name="dismissals")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="dismissed_announcements"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["announcement", "user"], name="announcement_dismissed_once")
        ]

    def __str__(self) -> str:
        return str(self.pk)
