"""Workspaces: their desired and actual state, their queue entries, and the last reports from their nodes."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_validator
from portal.workspaces.lifecycle import (
    HOLDING,
    STOPPABLE,
    DesiredState,
    PreemptionCause,
    QueueOutcome,
    State,
    TerminationReason,
)
from provisioning import messages
from provisioning.types import ResourceRequest, external_name


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    def live(self) -> WorkspaceQuerySet:
        """Exclude deleted workspaces."""
        # The same condition as in the partial index, so that the database can use the index.
        return self.exclude(state=State.TERMINATED)

    def running_or_waiting(self) -> WorkspaceQuerySet:
        """Return the workspaces that can be stopped."""
        return self.filter(state__in=STOPPABLE)

    def homes(self) -> models.QuerySet[Workspace, dict[str, Any]]:
        """Return the homes of the workspaces' owners: distinct `team_id`, `team__slug`, `node_id` and `node`.

        A user has a home in a team on each node that ever ran one of their workspaces, until the team is
        deleted.
        """
        places = {"node_id": F("allocations__node_id"), "node": F("allocations__node__name")}
        rows = self.filter(allocations__isnull=False, team__deleted_at=None).values(
            "team_id", "team__slug", **places
        )
        return rows.distinct().order_by("team__slug", "node", "node_id")

    def due(self, now: datetime) -> WorkspaceQuerySet:
        """Return the workspaces whose next step is due and that have no command in flight."""
        return self.filter(next_reconcile_at__lte=now).filter(
            Q(lease="") | Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
        )


def origin_affixes() -> tuple[str, str]:
    """Return the prefix and suffix of a workspace's origin, such as `http://` and `.localhost:8000`."""
    scheme, _, rest = settings.BERTH_PUBLIC_URL.partition("://")
    _, colon, port = rest.partition(":")
    return f"{scheme}://", f".{settings.BERTH_DOMAIN}{colon}{port}"


class Workspace(models.Model):
    """One environment of one user, charged to one team.

    `desired_state` is what the user wants, `state` the actual state. `generation` counts starts. `lease`
    identifies the one command in flight; a result with another lease is dropped.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=60, validators=[slug_validator])
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workspaces")
    team = models.ForeignKey("accounts.Team", on_delete=models.PROTECT, related_name="workspaces")
    template = models.ForeignKey("catalog.Template", on_delete=models.PROTECT, related_name="workspaces")
    flavor = models.ForeignKey("catalog.Flavor", on_delete=models.PROTECT, related_name="workspaces")
    # A copy, so that changes of the catalog do not affect running workspaces.
    resources = models.JSONField()
    # Until the workspace runs: its flavors in order of preference, if there are several. Each has `flavor`
    # (slug), `resources`, `preemptible`, `loses_work` and `lifetime_s`. The workspace's own `flavor` and
    # `resources` are from the first one, or the one on which it was last placed.
    flavor_choices = models.JSONField(default=list, blank=True)
    # Maximum wait in seconds for an earlier flavor of the list while a later one is free.
    start_within_s = models.PositiveIntegerField(default=0)
    # The original request for accelerators, cores and memory, while the GPUs are released (`gpus.py`).
    released_resources = models.JSONField(null=True, blank=True, default=None)
    # Started without its GPUs because none was free. The user is notified once when they are.
    gpu_awaited = models.BooleanField(default=False)
    pool = models.ForeignKey(
        "inventory.Pool", null=True, blank=True, on_delete=models.PROTECT, related_name="workspaces"
    )
    # The environment version at the time of the request; `None` uses the software of the node.
    environment_version = models.ForeignKey(
        "environments.EnvironmentVersion",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="workspaces",
    )

    state = models.CharField(max_length=14, choices=State, default=State.PENDING)
    desired_state = models.CharField(max_length=10, choices=DesiredState, default=DesiredState.RUNNING)
    termination_reason = models.CharField(
        max_length=20, choices=TerminationReason, blank=True, default=TerminationReason.NONE
    )
    generation = models.PositiveIntegerField(
        default=0, help_text="Number of starts so far. Increases with each start."
    )

    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    next_reconcile_at = models.DateTimeField(null=True, blank=True, db_index=True)
    attempts = models.PositiveIntegerField(default=0)
    # The backend had no room for this start. The workspace releases its capacity and is queued again.
    start_refused = models.BooleanField(default=False)

    # The quota use by resource (`portal.quota.limits.resources`): as requested until placement, then as
    # allocated.
    amounts = models.JSONField(default=dict, blank=True)
    priority = models.SmallIntegerField(
        default=0, help_text="Higher values go first in the queue; 0 is the default."
    )
    preemptible = models.BooleanField(default=True, help_text="Whether it can be preempted.")
    # The owner's answer; `None` if not given. `loses_work` follows from it, else from the catalog.
    checkpointed = models.BooleanField(
        null=True,
        blank=True,
        default=None,
        help_text="Whether the work saves checkpoints; null if the owner did not say.",
    )
    loses_work = models.BooleanField(default=True, help_text="Whether preemption loses work.")
    # Whether a start may move the home regardless of its size; small homes may always move.
    move_home = models.BooleanField(default=False)
    expected_s = models.PositiveIntegerField(default=28_800)
    # Maximum time in seconds after the workspace is ready; `None` for no limit. `ends_at` is the end;
    # extensions move it. `ends_version` counts changes of the end: the task that stops the workspace checks
    # both.
    lifetime_s = models.PositiveIntegerField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    ends_version = models.PositiveIntegerField(default=0)
    # Names of secrets that the user selected (`portal.workspaces.secrets`); others are delivered
    # automatically.
    secrets = models.JSONField(default=list, blank=True)
    # The repository to clone at start: `url`, `ref`, `secret`, and `by`, the user who set it
    # (`checkouts.py`).
    git = models.JSONField(default=dict, blank=True)
    # The first start after this generation removes the user's packages; `None` for no reset.
    packages_reset_after = models.PositiveIntegerField(null=True, blank=True)
    # Id of the job token that created it, if it is deleted with that token (`housekeeping.delete_bound`).
    # No foreign key: the row of an expired token is deleted.
    bound_to = models.UUIDField(null=True, blank=True, default=None, editable=False)
    endpoint = models.CharField(max_length=200, blank=True)

    created_at = models.DateTimeField(auto_now_add=True)
    state_since = models.DateTimeField(help_text="When it entered this state.")
    requested_at = models.DateTimeField(help_text="When it was requested.")
    # When the start was approved, and the approver's username; empty if no approval was needed.
    approved_at = models.DateTimeField(null=True, blank=True)
    approved_by = models.CharField(max_length=150, blank=True)
    admitted_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was admitted from the queue."
    )
    placed_at = models.DateTimeField(null=True, blank=True, help_text="When nodes were allocated.")
    # When its devices were checked before the start, if that was needed.
    checks_began_at = models.DateTimeField(null=True, blank=True)
    checks_ended_at = models.DateTimeField(null=True, blank=True)
    # When its home was moved to the node of this start, if that was needed.
    home_move_began_at = models.DateTimeField(null=True, blank=True)
    home_move_ended_at = models.DateTimeField(null=True, blank=True)
    launched_at = models.DateTimeField(
        null=True, blank=True, help_text="When its start was sent to the nodes."
    )
    began_at = models.DateTimeField(
        null=True, blank=True, help_text="When its engine began it; null where the portal places workspaces."
    )
    ready_at = models.DateTimeField(null=True, blank=True, help_text="When it was ready.")

    objects = models.Manager.from_queryset(WorkspaceQuerySet)()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "team", "name"],
                condition=~Q(state=State.TERMINATED),
                name="workspace_name_unique",
                violation_error_message=_("You already have a workspace with this name in this team."),
            ),
            # A workspace that holds capacity has a pool.
            models.CheckConstraint(
                condition=Q(pool__isnull=False) | ~Q(state__in=sorted(HOLDING)),
                name="workspace_holding_has_pool",
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "state"], name="workspace_owner_state"),
            models.Index(fields=["state", "created_at"], name="workspace_state_created"),
            # For the query of the last 1000 requests, from which the scheduler learns.
            models.Index(fields=["requested_at"], name="workspace_requested"),
            # The order of all lists, so that the database reads only the rows of one page.
            models.Index(
                fields=["-created_at", "-id"],
                condition=~Q(state=State.TERMINATED),
                name="workspace_live_newest",
            ),
            # For the query about free GPUs, once a minute.
            models.Index(
                fields=["requested_at"], condition=Q(gpu_awaited=True), name="workspace_gpu_awaited"
            ),
            # For the query of workspaces whose CI job has ended.
            models.Index(
                fields=["bound_to"],
                condition=Q(bound_to__isnull=False) & ~Q(state=State.TERMINATED),
                name="workspace_live_bound",
            ),
            # For the query of workspaces that reach their end, twice a minute.
            models.Index(fields=["ends_at"], condition=Q(state=State.RUNNING), name="workspace_running_ends"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def external_name(self) -> str:
        return external_name(str(self.pk))

    @property
    def origin(self) -> str:
        """The workspace's own origin, such as `http://ws-0f….localhost:8000`."""
        before, after = origin_affixes()
        return f"{before}{self.external_name}{after}"

    @property
    def runs_until(self) -> datetime | None:
        """When the workspace will stop automatically; `None` if it is not running or has no end."""
        return self.ends_at if self.state == State.RUNNING else None

    @property
    def preempting(self) -> Preemption | None:
        """Its pending preemption, or `None`."""
        return getattr(self, "preemption", None)

    @property
    def waits_for_checks(self) -> bool:
        """Whether the start waits for checks of its devices."""
        return self.checks_began_at is not None and self.checks_ended_at is None and self.launched_at is None

    @property
    def waits_for_home(self) -> bool:
        """Whether the start waits for its home, which moves to its node."""
        began, ended = self.home_move_began_at, self.home_move_ended_at
        return began is not None and ended is None and self.launched_at is None

    @property
    def request(self) -> ResourceRequest:
        """The requested resources. Raises `ValueError` if the stored value is invalid."""
        return messages.load(self.resources, ResourceRequest)

    @property
    def accelerated(self) -> bool:
        """Whether it requests accelerators."""
        return bool(self.resources["accelerators"]["count"])

    @property
    def gpu_released(self) -> bool:
        """Whether its accelerators are released."""
        return self.released_resources is not None

    @property
    def bound(self) -> bool:
        """Whether it is deleted when the CI job that created it ends."""
        return self.bound_to is not None

    @property
    def simulated(self) -> bool:
        """Whether the workspace is simulated. The flavor decides, because the pool may be unknown."""
        return self.flavor.simulated or (self.pool is not None and self.pool.simulated)


class QueueEntry(models.Model):
    """The queue's decision about a workspace, and the details shown to its owner. Every workspace has one.

    `nominated` is set while other workspaces are preempted for this one. `reservation_seq` is above 0 once
    capacity is reserved for its start; lower values go first (`scheduling.engine.model.Workload`). `reason`
    and `eta_basis` are reasons (`code`, `params`). `blocker` is the limiting rule with its amounts and
    holders, as REST shows it. `member_order` is the reason why fair sharing among members changed its
    position, or empty. `next_flavor` is the flavor on which the workspace is expected to start, if it lists
    several. `digest` covers outcome, reason, blocker, member order and next flavor as last written, so that a
    cycle can detect changes without reading them.
    """

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="queue_entry"
    )
    nominated = models.BooleanField(default=False)
    reservation_seq = models.PositiveBigIntegerField(default=0)
    preemption_count = models.PositiveIntegerField(default=0)
    outcome = models.CharField(max_length=16, choices=QueueOutcome, blank=True)
    position = models.PositiveIntegerField(null=True, blank=True)
    eta_at = models.DateTimeField(null=True, blank=True)
    eta_basis = models.JSONField(default=dict, blank=True)
    reason = models.JSONField(default=dict, blank=True)
    blocker = models.JSONField(default=dict, blank=True)
    member_order = models.JSONField(default=dict, blank=True)
    next_flavor = models.JSONField(default=dict, blank=True)
    digest = models.CharField(max_length=32, blank=True)

    def __str__(self) -> str:
        return f"queue entry of {self.workspace_id}"


class Preemption(models.Model):
    """Pending preemption of a workspace at `preempt_at`, for the workload or reservation `preempted_by`.

    The workspace then stops, keeps its files, and is queued again. `preempted_by` is empty for a drain.
    """

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="preemption"
    )
    preempt_at = models.DateTimeField()
    preempted_by = models.CharField(max_length=40, blank=True)
    cause = models.CharField(max_length=12, choices=PreemptionCause)

    def __str__(self) -> str:
        return f"preemption of {self.workspace_id}"


class WorkspaceStatus(models.Model):
    """Last reports about a workspace. Every workspace has one.

    `reason` (`code`, `params`) is the current problem or the cause of a failure. `stopped` says why the
    portal stopped it: a reason as JSON, with `at`, `rule` and `set_by` (`workspaces.stops`); empty if a
    person did. The other fields hold the last reports of its agent and its node.
    """

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="status"
    )
    reason = models.JSONField(default=dict, blank=True)
    stopped = models.JSONField(default=dict, blank=True)
    log_tail = models.TextField(blank=True)
    activity = models.JSONField(default=dict, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    gpu_idle_since = models.DateTimeField(null=True, blank=True)
    # Results of the repository checkouts of the last start, by kind (`workspaces.checkouts`).
    checkouts = models.JSONField(default=dict, blank=True)
    # Overuse of its GPU shares (`workspaces.share_overuse`).
    gpu_shares = models.JSONField(default=dict, blank=True)
    # Programs ended for lack of memory (`workspaces.memory_kills`).
    memory_kill = models.JSONField(default=dict, blank=True)
    # What an engine that places by itself reports (`workspaces.engine_queue`).
    engine = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return f"status of {self.workspace_id}"


class PoolObservation(models.Model):
    """Observation of all workspaces of an engine's pool at once.

    A request has a `lease` until `expires_at`. `cursor` continues after the last answer; `listed_at` is the
    time of the last complete list. `failures` counts consecutive failures. `due_at`, the time of the next
    request, is set while workspaces start.
    """

    pool = models.OneToOneField(
        "inventory.Pool", primary_key=True, on_delete=models.CASCADE, related_name="observation"
    )
    lease = models.CharField(max_length=32, blank=True)
    asked_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    cursor = models.CharField(max_length=200, blank=True)
    listed_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(null=True, blank=True, db_index=True)

    def __str__(self) -> str:
        return f"observation of {self.pool_id}"


class StartSecrets(models.Model):
    """Secrets delivered to the agent of a start.

    `given` lists id, name, kind, scope and version, never a value. `closed` is set once the app of that
    `generation` has started. `problem` is the reason (as JSON) why the last request for them failed; empty if
    it succeeded.
    """

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="start_secrets"
    )
    generation = models.PositiveIntegerField()
    given = models.JSONField(default=list)
    problem = models.JSONField(default=dict)
    given_at = models.DateTimeField()
    closed = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"secrets of a start of {self.workspace_id}"
