"""Models of limits: quotas, cohorts, shares, grants, member caps, site limits and rates.

A *resource* is named by a string (`portal.quota.limits.resources`): `gpu:h100` in milli-GPU, `mig:1g.10gb` in
thousandths of an instance, `gpu` for accelerators of all models, `cpu_milli`, `memory_mib`, `disk_mib`,
`workspaces`. A resource without a quota is not limited by quota.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_validator
from portal.quota.limits.resources import validate_resource

WEIGHT_ONE = 1000


class Cohort(models.Model):
    """A group of teams (or cohorts) that can borrow unused quota from each other."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=80)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    weight_milli = models.PositiveIntegerField(
        default=WEIGHT_ONE, help_text="Weight in fair sharing, in thousandths."
    )
    # For requests that list several flavors (`types.Fungibility`).
    borrow_first = models.BooleanField(
        default=True,
        help_text=_("Whether a request borrows quota for a flavor before it tries the next one."),
    )
    preempt_first = models.BooleanField(
        default=False, help_text=_("Whether a request preempts for a flavor before it tries the next one.")
    )

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.name

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (
            *(self.pk, self.name, self.parent_id, self.weight_milli),
            *(self.borrow_first, self.preempt_first),
        )


class TeamShare(models.Model):
    """A team's cohort and weight. A team without a row has no cohort and the default weight.

    `borrowed_avg` is the decayed average of borrowed amounts by resource, as of `averaged_at`.
    """

    team = models.OneToOneField(
        "accounts.Team", primary_key=True, on_delete=models.CASCADE, related_name="share"
    )
    cohort = models.ForeignKey(
        Cohort, null=True, blank=True, on_delete=models.PROTECT, related_name="team_shares"
    )
    weight_milli = models.PositiveIntegerField(default=WEIGHT_ONE)
    reclaim = models.BooleanField(
        default=True, help_text=_("Whether the team may preempt borrowers of its quota.")
    )
    borrowed_avg = models.JSONField(default=dict, blank=True)
    averaged_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"share of {self.team}"

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.cohort_id, self.weight_milli, self.reclaim)


class Quota(models.Model):
    """The quota of a team, or of a cohort for all its members, for one resource. None: no limit."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="quotas"
    )
    cohort = models.ForeignKey(Cohort, null=True, blank=True, on_delete=models.CASCADE, related_name="quotas")
    resource = models.CharField(max_length=80, validators=[validate_resource])
    quota = models.PositiveBigIntegerField(
        default=0, help_text="Guaranteed amount, in the resource's base unit."
    )
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

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.quota, self.borrowing_limit, self.lending_limit)


class SiteLimit(models.Model):
    """The maximum of a resource for all teams together, regardless of capacity."""

    resource = models.CharField(max_length=80, primary_key=True, validators=[validate_resource])
    amount = models.PositiveBigIntegerField(
        help_text="Maximum amount for the whole site, in the resource's base unit."
    )

    class Meta:
        ordering = ["resource"]

    def __str__(self) -> str:
        return self.resource

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.amount)


class MemberCap(models.Model):
    """The maximum for one member of a team or, without a user, for every member without their own cap."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="member_caps")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="member_caps"
    )
    resource = models.CharField(max_length=80, validators=[validate_resource])
    amount = models.PositiveBigIntegerField(
        help_text="Maximum amount for a member, in the resource's base unit."
    )

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

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.amount)


class MemberShare(models.Model):
    """The decayed average use of a team member, in milli-GPU, as of `averaged_at`.

    A member without a row has used nothing recently.
    """

    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="member_averages")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="member_averages"
    )
    use_avg = models.PositiveBigIntegerField(default=0)
    averaged_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="member_share_once")]

    def __str__(self) -> str:
        return f"share of {self.user} in {self.team}"


class GrantQuerySet(models.QuerySet["Grant"]):
    def active(self, now: datetime) -> GrantQuerySet:
        """Return the grants that apply at `now`."""
        return self.filter(starts_at__lte=now, ended_at=None).filter(Q(ends_at=None) | Q(ends_at__gt=now))

    def run_out(self, now: datetime) -> GrantQuerySet:
        """Return expired grants whose users have not been notified yet."""
        return self.filter(ended_at=None, ends_at__lte=now)


class Grant(models.Model):
    """An increase of a team's quota or, with `user`, of a member's cap, until `ends_at` if set."""

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
        null=True, blank=True, help_text=_("Time at which its end or revocation was announced.")
    )
    warned_at = models.DateTimeField(
        null=True, blank=True, help_text=_("Time at which its coming end was announced.")
    )
    request = models.OneToOneField(
        "quota_requests.QuotaRequest", null=True, blank=True, on_delete=models.SET_NULL, related_name="grant"
    )

    objects = models.Manager.from_queryset(GrantQuerySet)()

    class Meta:
        ordering = ["-starts_at"]
        indexes = [models.Index(fields=["team", "resource"], condition=Q(ended_at=None), name="grant_open")]

    def __str__(self) -> str:
        return f"{self.amount} {self.resource} for {self.team}"


class ResourceRate(models.Model):
    """The price of a GPU model in thousandths of a GPU-hour per hour. Without a row: 1000."""

    resource = models.CharField(max_length=80, primary_key=True, validators=[validate_resource])
    rate_milli = models.PositiveIntegerField(
        default=WEIGHT_ONE, help_text="Price of an hour of a whole unit, in thousandths of a GPU-hour."
    )

    class Meta:
        ordering = ["resource"]

    def __str__(self) -> str:
        return self.resource

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.rate_milli)
