"""Who may have how much: quota, cohorts, grants, requests for more, the ledger, bookings, the queue's lock.

A *resource* is named by a string, as `portal.quotas.resources` says: `gpu:h100` in milli-GPU,
`mig:1g.10gb` in thousandths of an instance, `gpu` for accelerators of all models, `cpu_milli`,
`memory_mib`, `disk_mib`, `workspaces`. What no quota names is not limited by quota.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from portal.common.names import slug_validator
from portal.quotas.resources import validate_amounts, validate_resource

WEIGHT_ONE = 1000


class Cohort(models.Model):
    """A group of teams (or of cohorts) inside which unused quota may be borrowed."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=80)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    weight_milli = models.PositiveIntegerField(default=WEIGHT_ONE)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name


class TeamShare(models.Model):
    """A team's place among the others. A team without a row has no cohort and the usual weight.

    `borrowed_avg` is the decayed mean of what it borrowed, by resource, as of `averaged_at`.
    """

    team = models.OneToOneField(
        "accounts.Team", primary_key=True, on_delete=models.CASCADE, related_name="share"
    )
    cohort = models.ForeignKey(
        Cohort, null=True, blank=True, on_delete=models.PROTECT, related_name="team_shares"
    )
    weight_milli = models.PositiveIntegerField(default=WEIGHT_ONE)
    reclaim = models.BooleanField(default=True, help_text="May take back what others borrowed from it.")
    borrowed_avg = models.JSONField(default=dict, blank=True)
    averaged_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"share of {self.team}"


class Quota(models.Model):
    """What a team, or a cohort for all its members, has of one resource. No limit is `None`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    cohort = models.ForeignKey(Cohort, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas")
    resource = models.CharField(max_length=80, validators=[validate_resource])
    nominal = models.PositiveBigIntegerField(default=0)
    borrowing_limit = models.PositiveBigIntegerField(null=True, blank=True)
    lending_limit = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["resource"]
        constraints = [
            models.CheckConstraint(
                condition=Q(team__isnull=True) ^ Q(cohort__isnull=True), name="quota_of_team_or_cohort"
            ),
            models.UniqueConstraint(
                fields=["team", "resource"], condition=Q(team__isnull=False), name="quota_team_resource"
            ),
            models.UniqueConstraint(
                fields=["cohort", "resource"], condition=Q(cohort__isnull=False), name="quota_cohort_resource"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} of {self.team or self.cohort}"


class SiteLimit(models.Model):
    """The most that all together may hold of a resource, however much there is."""

    resource = models.CharField(max_length=80, primary_key=True, validators=[validate_resource])
    amount = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["resource"]

    def __str__(self) -> str:
        return self.resource


class MemberCap(models.Model):
    """The most that one member of a team may hold; without a user, each member for whom no other is set."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="member_caps")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="member_caps"
    )
    resource = models.CharField(max_length=80, validators=[validate_resource])
    amount = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["resource"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "user", "resource"], condition=Q(user__isnull=False), name="member_cap_user"
            ),
            models.UniqueConstraint(
                fields=["team", "resource"], condition=Q(user__isnull=True), name="member_cap_each"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} of {self.user or 'each member'} in {self.team}"


class RequestKind(models.TextChoices):
    """What more is asked for."""

    QUOTA = "quota", "Quota of the team"
    MEMBER_CAP = "member_cap", "Cap of a member"
    LEDGER = "ledger", "GPU-hours"


class RequestStatus(models.TextChoices):
    """What became of a request for more."""

    OPEN = "open", "Open"
    APPROVED = "approved", "Approved"
    DENIED = "denied", "Denied"
    WITHDRAWN = "withdrawn", "Withdrawn"


class AutoApproveRule(models.Model):
    """Requests that need nobody: up to so much of a resource for so long, for one team or for all."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="auto_approve_rules"
    )
    resource = models.CharField(max_length=80, validators=[validate_resource])
    amount_at_most = models.PositiveBigIntegerField(help_text="Of all such grants that a team holds at once.")
    hours_at_most = models.PositiveIntegerField()
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["resource", "created_at"]

    def __str__(self) -> str:
        return f"{self.resource} for {self.team or 'every team'}"


class QuotaRequest(models.Model):
    """A member asks for `amount` more of `resource` (GPU-hours: `gpu_hours`, in ledger units), and why.

    `workspace` waits for it and starts by itself when it has been approved.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="quota_requests")
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="quota_requests"
    )
    kind = models.CharField(max_length=12, choices=RequestKind, default=RequestKind.QUOTA)
    resource = models.CharField(max_length=80)
    amount = models.PositiveBigIntegerField()
    until = models.DateTimeField(null=True, blank=True)
    why = models.TextField(max_length=2000)
    workspace = models.ForeignKey(
        "workspaces.Workspace",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="quota_requests",
    )
    status = models.CharField(max_length=10, choices=RequestStatus, default=RequestStatus.OPEN)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.TextField(blank=True)
    granted_amount = models.PositiveBigIntegerField(null=True, blank=True)
    granted_until = models.DateTimeField(null=True, blank=True)
    rule = models.ForeignKey(
        AutoApproveRule, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["status", "created_at"], name="quota_request_open")]
        constraints = [
            models.CheckConstraint(condition=Q(amount__gt=0), name="quota_request_asks_for_something")
        ]

    def __str__(self) -> str:
        return f"{self.resource} for {self.team}"


class GrantQuerySet(models.QuerySet["Grant"]):
    def active(self, now: datetime) -> GrantQuerySet:
        """Those that count at `now`."""
        return self.filter(starts_at__lte=now, ended_at=None).filter(Q(ends_at=None) | Q(ends_at__gt=now))

    def run_out(self, now: datetime) -> GrantQuerySet:
        """Those whose time is over and whose end has not been told yet."""
        return self.filter(ended_at=None, ends_at__lte=now)


class Grant(models.Model):
    """More than the quota says, for a team or (with `user`) as that member's cap; ends by itself."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="grants")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="grants"
    )
    resource = models.CharField(max_length=80, validators=[validate_resource])
    amount = models.PositiveBigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(
        null=True, blank=True, help_text="When its end was told, or it was revoked."
    )
    warned_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was told that the end is near."
    )
    request = models.OneToOneField(
        QuotaRequest, null=True, blank=True, on_delete=models.SET_NULL, related_name="grant"
    )

    objects = models.Manager.from_queryset(GrantQuerySet)()

    class Meta:
        ordering = ["-starts_at"]
        indexes = [models.Index(fields=["team", "resource"], condition=Q(ended_at=None), name="grant_open")]

    def __str__(self) -> str:
        return f"{self.amount} {self.resource} for {self.team}"


class Delegation(models.Model):
    """While it lasts, `delegate` may decide requests in place of `approver`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    approver = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="delegations_given"
    )
    delegate = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="delegations_held"
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="delegation_lasts"),
            models.CheckConstraint(condition=~Q(approver=F("delegate")), name="delegation_to_another"),
        ]

    def __str__(self) -> str:
        return f"{self.delegate} for {self.approver}"


class ReservationStatus(models.TextChoices):
    """Whether a reservation holds."""

    REQUESTED = "requested", "Waits for approval"
    BOOKED = "booked", "Booked"
    CANCELLED = "cancelled", "Cancelled"


class Reservation(models.Model):
    """Capacity for a team from `starts_at` until just before `ends_at`.

    Until it begins preemptible work of others may use it; only BOOKED ones keep capacity free.
    `amounts` are counted as workspaces' are (`portal.quotas.bookings.counted`).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="reservations")
    title = models.CharField(max_length=80)
    amounts = models.JSONField(validators=[validate_amounts])
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    status = models.CharField(max_length=10, choices=ReservationStatus, default=ReservationStatus.REQUESTED)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="reservations"
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    note = models.TextField(blank=True)
    reminded_at = models.DateTimeField(
        null=True, blank=True, help_text="When the team was told that it begins soon."
    )
    begun_at = models.DateTimeField(null=True, blank=True, help_text="When its beginning was acted on.")
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When its end was acted on.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["starts_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="reservation_lasts")
        ]
        indexes = [models.Index(fields=["status", "ends_at"], name="reservation_open")]

    def __str__(self) -> str:
        return self.title


class Period(models.TextChoices):
    """How often the ledger is refilled."""

    DAY = "day", "Every day"
    WEEK = "week", "Every week"
    MONTH = "month", "Every 30 days"


class LedgerAccount(models.Model):
    """A team's GPU-hours; a team without one is not limited. Units are those of `scheduling.ledger`.

    The columns are `provisioning.scheduling.ledger.Account`; times are rows' instead of seconds.
    """

    team = models.OneToOneField(
        "accounts.Team", primary_key=True, on_delete=models.CASCADE, related_name="ledger"
    )
    period = models.CharField(max_length=5, choices=Period, default=Period.MONTH)
    granted = models.PositiveBigIntegerField()
    period_started_at = models.DateTimeField()
    charged_until = models.DateTimeField()
    credit = models.PositiveBigIntegerField(default=0)
    spent = models.PositiveBigIntegerField(default=0)
    carry = models.PositiveIntegerField(default=0)
    unbilled = models.PositiveBigIntegerField(default=0)
    warned = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"ledger of {self.team}"


class EntryKind(models.TextChoices):
    """What moved a ledger."""

    OPENED = "opened", "Opened"
    CHANGED = "changed", "Grant changed"
    REFILL = "refill", "Refilled"
    CREDIT = "credit", "Credit"
    SPENT = "spent", "Spent"


class LedgerEntry(models.Model):
    """One movement of a ledger. Spending is one entry for each team and hour; `amount` has its sign."""

    account = models.ForeignKey(LedgerAccount, on_delete=models.CASCADE, related_name="entries")
    at = models.DateTimeField()
    kind = models.CharField(max_length=8, choices=EntryKind)
    amount = models.BigIntegerField()
    balance = models.BigIntegerField()
    actor_label = models.CharField(max_length=80)
    note = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["account", "-at"], name="ledger_entry_account")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}"


class ResourceRate(models.Model):
    """What a GPU of a model costs in GPU-hours for each hour, in thousandths. Without a row: 1000."""

    resource = models.CharField(max_length=80, primary_key=True, validators=[validate_resource])
    rate_milli = models.PositiveIntegerField(default=WEIGHT_ONE)

    class Meta:
        ordering = ["resource"]

    def __str__(self) -> str:
        return self.resource


class QueueState(models.Model):
    """The one row whose lock makes decisions one at a time, and what the last one knew.

    `promises` numbers the reserved heads. `seen_event` is the last entry of the audit log that the
    last cycle could know of: as long as there is no later one, nothing has changed.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    promises = models.PositiveBigIntegerField(default=0)
    seen_event = models.PositiveBigIntegerField(default=0)
    decided_at = models.DateTimeField(null=True, blank=True)
    took_ms = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="queue_state_single")]

    def __str__(self) -> str:
        return "queue"
