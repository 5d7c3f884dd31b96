"""Workspaces: what was asked for and is so, how they stand in the queue, what was last seen of them."""

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
        """All that have not been deleted."""
        # In these words, which are those of the index.
        return self.exclude(state=State.TERMINATED)

    def running_or_waiting(self) -> WorkspaceQuerySet:
        """All that can be stopped."""
        return self.filter(state__in=STOPPABLE)

    def homes(self) -> models.QuerySet[Workspace, dict[str, Any]]:
        """Where their users' homes lie: `team_id`, `team__slug`, `node_id` and `node`, each place once.

        A home is a user's in a team, on each node on which a workspace of theirs was ever placed.
        """
        places = {"node_id": F("allocations__node_id"), "node": F("allocations__node__name")}
        found = self.filter(allocations__isnull=False).values("team_id", "team__slug", **places)
        return found.distinct().order_by("team__slug", "node", "node_id")

    def due(self, now: datetime) -> WorkspaceQuerySet:
        """All whose next step is due and that no command is under way for."""
        return self.filter(next_reconcile_at__lte=now).filter(
            Q(lease="") | Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
        )


def origin_around() -> tuple[str, str]:
    """What stands before and after a workspace's name in its origin: `http://`, `.localhost:8000`."""
    scheme, _, rest = settings.BERTH_PUBLIC_URL.partition("://")
    _, colon, port = rest.partition(":")
    return f"{scheme}://", f".{settings.BERTH_DOMAIN}{colon}{port}"


class Workspace(models.Model):
    """One environment of one user, charged to one team.

    `desired_state` is the user's will, `state` what is so. `generation` counts incarnations. `lease` names
    the one command that may be under way; its answer is dropped unless it carries the same lease.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=60, validators=[slug_validator])
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workspaces")
    team = models.ForeignKey("accounts.Team", on_delete=models.PROTECT, related_name="workspaces")
    template = models.ForeignKey("catalog.Template", on_delete=models.PROTECT, related_name="workspaces")
    flavor = models.ForeignKey("catalog.Flavor", on_delete=models.PROTECT, related_name="workspaces")
    # Kept with the workspace, so that a changed catalog does not change what runs.
    resources = models.JSONField()
    # What it asked for of accelerators, cores and memory, while its GPUs are released (`gpus.py`).
    released_resources = models.JSONField(null=True, blank=True, default=None)
    # It was started without its GPUs, as none was free: its user is told once when they are.
    gpu_awaited = models.BooleanField(default=False)
    pool = models.ForeignKey(
        "inventory.Pool", null=True, blank=True, on_delete=models.PROTECT, related_name="workspaces"
    )
    # The software that it runs in, as it was when it was asked for; None is what its node has by itself.
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
    # The backend had no room for this start: what it holds is given back, then it waits again.
    start_refused = models.BooleanField(default=False)

    # The charge by resource (`portal.quota.limits.resources`): as requested until placed, then as held.
    amounts = models.JSONField(default=dict, blank=True)
    priority = models.SmallIntegerField(
        default=0, help_text="Higher values go first in the queue; 0 is the default."
    )
    preemptible = models.BooleanField(default=True, help_text="Whether it can be preempted.")
    # Its user's word, None where nothing was said. `loses_work` follows from it, else from the catalog.
    checkpointed = models.BooleanField(
        null=True,
        blank=True,
        default=None,
        help_text="Whether the work saves checkpoints; null if the owner did not say.",
    )
    loses_work = models.BooleanField(default=True, help_text="Whether preemption loses work.")
    expected_s = models.PositiveIntegerField(default=28_800)
    # For how long it may run from ready on; None for no end. `ends_at` is when that is over, moved by
    # extensions, and `ends_version` counts what was said of its end: who stops it compares both.
    lifetime_s = models.PositiveIntegerField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    ends_version = models.PositiveIntegerField(default=0)
    # Names of secrets that its user has asked for (`portal.workspaces.secrets`); others come by themselves.
    secrets = models.JSONField(default=list, blank=True)
    # The repository to clone at a start: `url`, `ref`, `secret`, and `by`, who named it (`checkouts.py`).
    git = models.JSONField(default=dict, blank=True)
    # The first start after this generation removes what its user has installed; None where none shall.
    packages_reset_after = models.PositiveIntegerField(null=True, blank=True)
    endpoint = models.CharField(max_length=200, blank=True)

    created_at = models.DateTimeField(auto_now_add=True)
    state_since = models.DateTimeField(help_text="When it entered this state.")
    requested_at = models.DateTimeField(help_text="When it was requested.")
    admitted_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was admitted from the queue."
    )
    placed_at = models.DateTimeField(null=True, blank=True, help_text="When nodes were allocated.")
    # The checks of its devices before it is started, where they were needed.
    checks_began_at = models.DateTimeField(null=True, blank=True)
    checks_ended_at = models.DateTimeField(null=True, blank=True)
    launched_at = models.DateTimeField(
        null=True, blank=True, help_text="When its start was sent to the nodes."
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
                violation_error_message=_("You have a workspace of this name in this team."),
            ),
            # What holds capacity has a pool.
            models.CheckConstraint(
                condition=Q(pool__isnull=False) | ~Q(state__in=sorted(HOLDING)),
                name="workspace_holding_has_pool",
            ),
        ]
        indexes = [
            models.Index(fields=["owner", "state"], name="workspace_owner_state"),
            models.Index(fields=["state", "created_at"], name="workspace_state_created"),
            # For the last thousand requests, from which placement learns.
            models.Index(fields=["requested_at"], name="workspace_requested"),
            # The order of every list: a page reads as many rows as it shows, however many there are.
            models.Index(
                fields=["-created_at", "-id"],
                condition=~Q(state=State.TERMINATED),
                name="workspace_live_newest",
            ),
            # For those who wait to hear that their GPUs are free, looked for once a minute.
            models.Index(
                fields=["requested_at"], condition=Q(gpu_awaited=True), name="workspace_gpu_awaited"
            ),
            # For what comes to its end, looked for twice a minute.
            models.Index(fields=["ends_at"], condition=Q(state=State.RUNNING), name="workspace_running_ends"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def external_name(self) -> str:
        return external_name(str(self.pk))

    @property
    def origin(self) -> str:
        """The workspace's own origin, e.g. `http://ws-0f….localhost:8000`."""
        before, after = origin_around()
        return f"{before}{self.external_name}{after}"

    @property
    def runs_until(self) -> datetime | None:
        """When it stops by itself; None while it does not run, and where it has no end."""
        return self.ends_at if self.state == State.RUNNING else None

    @property
    def preempting(self) -> Preemption | None:
        """Its notice to make room, or None."""
        return getattr(self, "preemption", None)

    @property
    def waits_for_checks(self) -> bool:
        """Whether its devices are being checked, so that nothing has been started yet."""
        return self.checks_began_at is not None and self.checks_ended_at is None and self.launched_at is None

    @property
    def request(self) -> ResourceRequest:
        """What it asks for, as a value. Raises ValueError for a row that cannot be read."""
        return messages.load(self.resources, ResourceRequest)

    @property
    def accelerated(self) -> bool:
        """Whether it asks for accelerators, or has them."""
        return bool(self.resources["accelerators"]["count"])

    @property
    def gpu_released(self) -> bool:
        """Whether it does without the accelerators that it was asked for with."""
        return self.released_resources is not None

    @property
    def simulated(self) -> bool:
        """Whether nothing real runs behind it: decided by its flavor, before it has a pool."""
        return self.flavor.simulated or (self.pool is not None and self.pool.simulated)


class QueueEntry(models.Model):
    """What the queue has decided about a workspace, and what its user is told while it waits.

    Every workspace has one. `nominated` is set while others are preempted for it, and `reservation_seq` is
    above zero once its start has been reserved: a lower one goes first (`scheduling.engine.model.Workload`).
    `reason` and `eta_basis` are reasons (`code`, `params`), `blocker` is the rule in the way with its amounts
    and holders, as REST shows it. `digest` is of outcome, reason and blocker as they were written: a cycle
    need not read them to know whether they still hold.
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
    digest = models.CharField(max_length=32, blank=True)

    def __str__(self) -> str:
        return f"queue entry of {self.workspace_id}"


class Preemption(models.Model):
    """A workspace has to make room at `preempt_at`, for the workload or reservation `preempted_by`.

    It stops then, its files stay, and it waits again. For a drain nobody stands behind it.
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
    """Every workspace has one. `reason` (`code`, `params`) says what is wrong with it, or why it failed;
    the rest is what its agent and its node reported last."""

    workspace = models.OneToOneField(
        Workspace, primary_key=True, on_delete=models.CASCADE, related_name="status"
    )
    reason = models.JSONField(default=dict, blank=True)
    log_tail = models.TextField(blank=True)
    activity = models.JSONField(default=dict, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    gpu_idle_since = models.DateTimeField(null=True, blank=True)
    # What became of the repositories of the last start, by kind (`workspaces.checkouts`).
    checkouts = models.JSONField(default=dict, blank=True)
    # How it stands to its parts of GPUs (`workspaces.share_overuse`).
    gpu_shares = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return f"status of {self.workspace_id}"


class StartSecrets(models.Model):
    """What the agent of a start was given: `given` lists id, name, kind, whose and version, never a value.

    `closed` once the app of that `generation` has begun. `problem` is a reason in its JSON form: why they
    could not be given when they were asked for last; empty where they were.
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
