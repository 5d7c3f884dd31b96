"""Models of join requests."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.people.accounts.models import Role

MAX_MESSAGE = 1000
"""Maximum length of the requester's message and of the decision note, in characters."""


class JoinState(models.TextChoices):
    """State of a join request."""

    OPEN = "open", _("Open")
    APPROVED = "approved", _("Approved")
    DENIED = "denied", _("Denied")
    CANCELLED = "cancelled", _("Cancelled")
    EXPIRED = "expired", _("Expired")


class JoinRequest(models.Model):
    """A request to join a team. `role` is the role granted by an owner.

    `team` is None if the team has been deleted; `team_name` keeps its name.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(
        "accounts.Team", null=True, on_delete=models.SET_NULL, related_name="join_requests"
    )
    team_name = models.CharField(max_length=80, help_text="Name of the team, for people.")
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="join_requests"
    )
    message = models.TextField(
        max_length=MAX_MESSAGE, blank=True, help_text="Message of the requester to the owners of the team."
    )
    state = models.CharField(max_length=10, choices=JoinState, default=JoinState.OPEN)
    role = models.CharField(max_length=10, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it was decided.")
    decision_note = models.TextField(blank=True, help_text="Note of the person who decided.")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "requester"], condition=Q(state=JoinState.OPEN), name="join_request_once"
            )
        ]
        indexes = [models.Index(fields=["state", "created_at"], name="join_request_open")]

    def __str__(self) -> str:
        return f"{self.requester_id} to {self.team_name}"

    @property
    def granted_role_label(self) -> str:
        """Label of the granted role, or ""."""
        return str(Role(self.role).label) if self.role else ""
