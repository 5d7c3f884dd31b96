"""Models of reservations: capacity reserved for a team and a period."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from portal.quota.limits.resources import validate_amounts


class ReservationState(models.TextChoices):
    """The state of a reservation."""

    REQUESTED = "requested", _("Waiting for approval")
    BOOKED = "booked", _("Booked")
    CANCELLED = "cancelled", _("Cancelled")


class BookingPermission(models.Model):
    """Permission for `user` to book for `team` without approval, granted by another user.

    Without a team, the permission covers every team that the user is not in.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="booking_permissions"
    )
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="booking_permissions"
    )
    granted_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="booking_permission_once"),
            models.UniqueConstraint(
                fields=["user"], condition=Q(team=None), name="booking_permission_for_all_once"
            ),
            models.CheckConstraint(condition=~Q(user=F("granted_by")), name="booking_permission_by_another"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} for {self.team_id or 'every team'}"


class Reservation(models.Model):
    """Capacity for a team from `starts_at` (inclusive) to `ends_at` (exclusive).

    Until the start, preemptible work of other teams may use the capacity. Only BOOKED reservations keep
    capacity free. `amounts` count like those of workspaces
    (`portal.quota.reservations.slots.add_models_to_total`).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="reservations")
    title = models.CharField(max_length=80)
    amounts = models.JSONField(validators=[validate_amounts])
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    state = models.CharField(max_length=10, choices=ReservationState, default=ReservationState.REQUESTED)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="reservations"
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text=_("User who last changed the open request."),
    )
    permission = models.ForeignKey(
        BookingPermission,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text=_("Permission by which it was booked without approval."),
    )
    note = models.TextField(blank=True)
    reminded_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Time at which the team was notified of the coming start.")
    )
    begun_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Time at which its start was processed.")
    )
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Time at which its end was processed.")
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="reservation_lasts")
        ]
        indexes = [models.Index(fields=["state", "ends_at"], name="reservation_open")]

    def __str__(self) -> str:
        return self.title

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.title, self.amounts, self.starts_at, self.ends_at, self.state)
