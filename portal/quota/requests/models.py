"""Models of requests for more quota or GPU-hours, and of rules that approve some automatically."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.quota.limits.resources import validate_resource


class RequestKind(models.TextChoices):
    """The kind of limit to increase."""

    QUOTA = "quota", _("Quota of the team")
    MEMBER_CAP = "member_cap", _("Cap of a member")
    LEDGER = "ledger", _("GPU-hours")


class RequestState(models.TextChoices):
    """The state of a request."""

    OPEN = "open", _("Open")
    APPROVED = "approved", _("Approved")
    DENIED = "denied", _("Denied")
    CANCELLED = "cancelled", _("Cancelled")


class AutoApproveRule(models.Model):
    """A rule that approves requests up to an amount and duration, for one team or all."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="auto_approve_rules"
    )
    resource = models.CharField(max_length=80, validators=[validate_resource])
    amount_at_most = models.PositiveBigIntegerField(
        help_text=_("Maximum of all such grants of a team at a time.")
    )
    hours_at_most = models.PositiveIntegerField(help_text="Maximum duration that it approves, in hours.")
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text=_("User who last created or changed the rule."),
    )

    class Meta:
        ordering = ["resource", "created_at"]

    def __str__(self) -> str:
        return f"{self.resource} for {self.team or 'every team'}"

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.amount_at_most, self.hours_at_most, self.enabled)


class QuotaRequestQuerySet(models.QuerySet["QuotaRequest"]):
    def open(self) -> QuotaRequestQuerySet:
        """Return undecided requests."""
        return self.filter(state=RequestState.OPEN)


class QuotaRequest(models.Model):
    """A member's request for `amount` more of `resource` (GPU-hours: `gpu_hours`, in ledger units).

    `note` is the justification. `workspace` waits for the approval and then starts.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="quota_requests")
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="quota_requests"
    )
    kind = models.CharField(max_length=12, choices=RequestKind, default=RequestKind.QUOTA)
    resource = models.CharField(max_length=80)
    amount = models.PositiveBigIntegerField()
    until = models.DateTimeField(null=True, blank=True, help_text="Requested end; null for no end.")
    note = models.TextField(max_length=2000)
    workspace = models.ForeignKey(
        "workspaces.Workspace",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="quota_requests",
    )
    state = models.CharField(max_length=10, choices=RequestState, default=RequestState.OPEN)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True, help_text="When it was decided.")
    decision_note = models.TextField(blank=True, help_text="Note of the person who decided.")
    granted_amount = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Granted amount, in the resource's base unit."
    )
    granted_until = models.DateTimeField(
        null=True, blank=True, help_text="End of the grant; null if there is none."
    )
    rule = models.ForeignKey(
        AutoApproveRule, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = models.Manager.from_queryset(QuotaRequestQuerySet)()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["state", "created_at"], name="quota_request_open")]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="quota_request_asks_for_something")
        ]

    def __str__(self) -> str:
        return f"{self.resource} for {self.team}"
