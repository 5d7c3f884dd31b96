"""Notices before workspaces stop or release their GPUs, observed activity, policies and proposals."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import MAX_LIFETIME_H
from portal.reclaim.engine.ladder import Cause


class ReclaimNotice(models.Model):
    """Notice that a running workspace stops, or releases its GPUs, at `due_at`.

    Valid for one `generation`, and only while the end of the workspace is unchanged: `ends_version` is the
    workspace's value at the time of the notice. `reason` has `code` and `params`.
    """

    workspace = models.OneToOneField(
        "workspaces.Workspace", primary_key=True, on_delete=models.CASCADE, related_name="reclaim_notice"
    )
    generation = models.PositiveIntegerField()
    ends_version = models.PositiveIntegerField()
    cause = models.CharField(max_length=16, choices=[(cause.value, cause.value) for cause in Cause])
    warned_at = models.DateTimeField()
    due_at = models.DateTimeField(db_index=True)
    reason = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"notice of {self.workspace_id}"


class WorkspaceActivity(models.Model):
    """Idle time of a workspace's start. A small row that is rewritten with each observation.

    - `report`, `signals`: the agent's last report and its signals (kind, value, threshold, active), as JSON.
    - `active`: the kinds of active signals, separated by commas; None if not observed.
    - `kept_until`: idle time does not count before this.
    - `unused_gpus`: how many GPUs are unused while another GPU works (`engine.devices.unused_count`).
    - `unused_notified`: the generation for which the owner was notified about unused GPUs; 0: none.
    """

    workspace = models.OneToOneField(
        "workspaces.Workspace", primary_key=True, on_delete=models.CASCADE, related_name="reclaim_activity"
    )
    generation = models.PositiveIntegerField()
    observed_at = models.DateTimeField()
    idle_s = models.FloatField(default=0)
    gpu_idle_s = models.FloatField(default=0)
    kept_until = models.DateTimeField(null=True, blank=True)
    unused_gpus = models.PositiveSmallIntegerField(default=0)
    unused_notified = models.PositiveIntegerField(default=0)
    active = models.CharField(max_length=80, null=True, blank=True)
    # Text instead of JSON columns: 10,000 rows are read and written once a minute.
    report = models.TextField(default="{}")
    signals = models.TextField(default="[]")

    def __str__(self) -> str:
        return f"activity of {self.workspace_id}"


class ActivityChange(models.Model):
    """A change of the active signals in a workspace's start at `at` (`WorkspaceActivity.active`).

    Kept for 2 days, for display only.
    """

    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.CASCADE, related_name="activity_changes"
    )
    generation = models.PositiveIntegerField()
    at = models.DateTimeField(db_index=True)
    active = models.CharField(max_length=80, null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["workspace", "at"], name="activity_change_workspace")]

    def __str__(self) -> str:
        return f"{self.workspace_id} at {self.at}: {self.active}"


class IdleKind(models.TextChoices):
    """The part of a workspace that was idle."""

    ALL = "all", "The whole workspace"
    GPU = "gpu", "Its GPUs"


class IdlePeriod(models.Model):
    """A period in which a start of a workspace was idle. Kept for a month after its end."""

    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.CASCADE, related_name="idle_periods"
    )
    generation = models.PositiveIntegerField()
    kind = models.CharField(max_length=3, choices=IdleKind)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(db_index=True)

    class Meta:
        indexes = [models.Index(fields=["workspace", "generation"], name="idle_period_start")]

    def __str__(self) -> str:
        return f"{self.workspace_id} idle from {self.began_at} to {self.ended_at}"


class HomeStay(models.Model):
    """Time for which a home has been unused or, with `archive`, archived.

    Counts observed seconds only. `used_at` is the last use recorded in its `HomePlace`. `warned_s` is how
    many observed seconds ago the user was warned of the next step; None: not yet.
    """

    place = models.OneToOneField(
        "workspaces.HomePlace", primary_key=True, on_delete=models.CASCADE, related_name="stay"
    )
    archive = models.UUIDField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    unused_s = models.FloatField(default=0)
    warned_s = models.FloatField(null=True, blank=True)
    warned_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"stay of the home {self.place_id}"


class LastPass(models.Model):
    """Time of the last pass: one row. Times without passes do not count against workspaces.

    `recorded_since` is when the portal began to record idle times. A second row, `HOMES`, is for the pass
    over homes.
    """

    HOMES = 2

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    at = models.DateTimeField()
    recorded_since = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"last pass at {self.at}"


class Absence(models.Model):
    """A gap in observation after `since`, or a change of the clock. Does not count towards the lifetime."""

    since = models.DateTimeField(db_index=True)
    seconds = models.FloatField()

    def __str__(self) -> str:
        return f"{self.seconds} s from {self.since}"


class ScheduledStop(models.Model):
    """A stop by a schedule, which may start the workspace again once unless a user acts first.

    Valid for one `generation` while the workspace is stopped. `stopped_at` is by the portal's clock.
    """

    workspace = models.OneToOneField(
        "workspaces.Workspace", primary_key=True, on_delete=models.CASCADE, related_name="scheduled_stop"
    )
    generation = models.PositiveIntegerField()
    stopped_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"scheduled stop of {self.workspace_id}"


class PolicyScope(models.TextChoices):
    """The scope of a policy, from the widest to the narrowest. Team policies can only be stricter."""

    SITE = "site", _("The site")
    POOL = "pool", _("Pool")
    TEMPLATE = "template", _("Template")
    FLAVOR = "flavor", _("Flavor")
    TEAM = "team", _("Team")


MAX_MINUTES = 60 * 24 * 60
MAX_NOTICE_MINUTES = 24 * 60
MAX_DAYS = 3650


def _minutes(most: int, help_text: Any) -> Any:
    return models.PositiveIntegerField(
        null=True, blank=True, validators=[MaxValueValidator(most)], help_text=help_text
    )


class ReclaimPolicy(models.Model):
    """When to stop workspaces of a site, pool, template, flavor or team. None inherits; 0 disables.

    `days` are names from `engine.week.DAYS`, `holidays` ISO dates, `zone` an IANA name.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    scope = models.CharField(max_length=8, choices=PolicyScope)
    pool = models.OneToOneField(
        "inventory.Pool", null=True, blank=True, on_delete=models.CASCADE, related_name="reclaim_policy"
    )
    template = models.OneToOneField(
        "catalog.Template", null=True, blank=True, on_delete=models.CASCADE, related_name="reclaim_policy"
    )
    flavor = models.OneToOneField(
        "catalog.Flavor", null=True, blank=True, on_delete=models.CASCADE, related_name="reclaim_policy"
    )
    team = models.OneToOneField(
        "accounts.Team", null=True, blank=True, on_delete=models.CASCADE, related_name="reclaim_policy"
    )

    idle_minutes = _minutes(MAX_MINUTES, _("Idle limit of workspaces without accelerators; 0: never."))
    idle_gpu_minutes = _minutes(MAX_MINUTES, _("Idle limit of workspaces with accelerators; 0: never."))
    gpu_unused_minutes = _minutes(MAX_MINUTES, _("Limit with all GPUs at 0 %, whatever else runs; 0: never."))
    release_gpu_minutes = _minutes(
        MAX_MINUTES,
        _("Idle limit after which GPUs are released and the app restarts without them; 0: never."),
    )
    longest_hours = _minutes(MAX_LIFETIME_H, _("Maximum lifetime, extensions included; 0: no limit."))
    notice_minutes = _minutes(MAX_NOTICE_MINUTES, _("Minimum notice before a stop."))
    archive_days = _minutes(
        MAX_DAYS, _("Unused time after which home folders are archived and emptied; 0: never.")
    )
    delete_days = _minutes(
        MAX_DAYS, _("Time in an archive after which administrators can delete a home folder; 0: never.")
    )
    stop_when_spent = models.BooleanField(
        null=True,
        blank=True,
        help_text=_("Stop workspaces with accelerators when the team's GPU-hours are spent."),
    )
    zone = models.CharField(max_length=64, blank=True, help_text=_("Time zone, such as Europe/Berlin."))
    days = models.JSONField(default=list, blank=True)
    work_from = models.TimeField(null=True, blank=True, help_text=_("Start of working hours."))
    work_until = models.TimeField(null=True, blank=True, help_text=_("End of working hours."))
    after_hours_minutes = _minutes(
        MAX_MINUTES, _("Idle limit outside these hours; applies if it is shorter.")
    )
    stop_at = models.TimeField(null=True, blank=True, help_text=_("Time at which unused workspaces stop."))
    start_at = models.TimeField(
        null=True, blank=True, help_text=_("Time at which these workspaces start again, except on holidays.")
    )
    holidays = models.JSONField(default=list, blank=True)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name_plural = "reclaim policies"
        constraints = [
            models.UniqueConstraint(
                fields=["scope"], condition=Q(scope=PolicyScope.SITE), name="reclaim_policy_one_site"
            ),
            models.CheckConstraint(
                condition=Q(scope="site", pool=None, template=None, flavor=None, team=None)
                | Q(scope="pool", pool__isnull=False, template=None, flavor=None, team=None)
                | Q(scope="template", pool=None, template__isnull=False, flavor=None, team=None)
                | Q(scope="flavor", pool=None, template=None, flavor__isnull=False, team=None)
                | Q(scope="team", pool=None, template=None, flavor=None, team__isnull=False),
                name="reclaim_policy_scope",
            ),
        ]

    def __str__(self) -> str:
        return f"reclaim policy for {self.target}"

    @property
    def subject(self) -> Any:
        """The pool, template, flavor or team of the policy; None for the site."""
        return None if self.scope == PolicyScope.SITE else getattr(self, self.scope)

    @property
    def target(self) -> str:
        """The target in REST and the site file: `site`, or kind and slug (`flavor:a100-full`)."""
        return self.scope if self.scope == PolicyScope.SITE else f"{self.scope}:{self.subject.slug}"


class Discontent(models.Model):
    """A running workspace with low placement health in the last observation.

    `reason` (`code`, `params`) is the worst problem of its placement; `score` is in percent.
    """

    workspace = models.OneToOneField(
        "workspaces.Workspace", primary_key=True, on_delete=models.CASCADE, related_name="discontent"
    )
    generation = models.PositiveIntegerField()
    score = models.PositiveSmallIntegerField()
    reason = models.JSONField(default=dict)
    since = models.DateTimeField()
    observed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.workspace_id} at {self.score} %"


class WorkPace(models.Model):
    """The pace of a workspace by its own metrics, compared between placements.

    `paces` is JSON: an `engine.pace.Pace` by metric. The row survives restarts, since it compares placements.
    `slow_since` is when the work became slower than elsewhere, else None. The row is written with each
    observation only while the work is slow.
    """

    workspace = models.OneToOneField(
        "workspaces.Workspace", primary_key=True, on_delete=models.CASCADE, related_name="pace"
    )
    generation = models.PositiveIntegerField()
    paces = models.TextField(default="{}")
    slow_since = models.DateTimeField(null=True, blank=True, db_index=True)
    observed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"pace of {self.workspace_id}"


class BestClock(models.Model):
    """The highest clock of busy GPUs of a model within a week, which other GPUs of the model could reach."""

    model = models.CharField(primary_key=True, max_length=80)
    clock_mhz = models.PositiveIntegerField()
    seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.model}: {self.clock_mhz} MHz"


class ProposalState(models.TextChoices):
    """The state of a proposal. `withdrawn`: the proposal was no longer useful."""

    OPEN = "open", _("Open")
    APPLIED = "applied", _("Applied")
    DISMISSED = "dismissed", _("Dismissed")
    WITHDRAWN = "withdrawn", _("Withdrawn")


class RebalanceProposal(models.Model):
    """A proposal to move running workspaces, all or none.

    - `moves`: list of `workspace`, `generation`, `pool`, `source` and `target` (placements in JSON form).
    - `waiting`: the request that would start; None if the workspace itself benefits.
    - `gain`: milli-GPU with `waiting`, else percent.
    - `lost`: milli-GPU-seconds of work to repeat.
    - `key`: equal for equivalent proposals.

    Open proposals are checked again once a minute.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    key = models.CharField(max_length=64)
    waiting = models.ForeignKey(
        "workspaces.Workspace", null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    moves = models.JSONField()
    reason = models.JSONField()
    gain = models.PositiveIntegerField()
    lost = models.PositiveBigIntegerField(default=0)
    state = models.CharField(max_length=9, choices=ProposalState, default=ProposalState.OPEN)
    proposed_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["-proposed_at", "-id"]
        constraints = [
            models.UniqueConstraint(fields=["key"], condition=Q(state="open"), name="proposal_open_once")
        ]
        indexes = [models.Index(fields=["state", "decided_at"], name="proposal_state_decided")]

    def __str__(self) -> str:
        return f"proposal {self.pk}"
