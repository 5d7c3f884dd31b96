"""Workspaces and the capacity that they hold."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q

from portal.common.names import slug_validator
from portal.workspaces.lifecycle import HOLDING, LIVE, State, TerminationReason, Wanted
from provisioning import messages
from provisioning.types import ResourceRequest, external_name


class WorkspaceQuerySet(models.QuerySet["Workspace"]):
    def live(self) -> WorkspaceQuerySet:
        """All that have not been deleted."""
        return self.filter(state__in=LIVE)

    def due(self, now: datetime) -> WorkspaceQuerySet:
        """All whose next step is due and that no command is under way for."""
        return self.filter(due_at__lte=now).filter(
            Q(lease="") | Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
        )


class Workspace(models.Model):
    """One environment of one user, charged to one team.

    `wanted` is the user's will, `state` what is so. `generation` counts incarnations. `lease` names
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
    pool = models.ForeignKey(
        "inventory.Pool", null=True, blank=True, on_delete=models.PROTECT, related_name="workspaces"
    )

    state = models.CharField(max_length=14, choices=State, default=State.PENDING)
    wanted = models.CharField(max_length=10, choices=Wanted, default=Wanted.RUNNING)
    termination_reason = models.CharField(
        max_length=20, choices=TerminationReason, blank=True, default=TerminationReason.NONE
    )
    generation = models.PositiveIntegerField(default=0)

    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True, db_index=True)
    attempts = models.PositiveIntegerField(default=0)

    # What it is charged, by resource (`portal.quotas.resources`): as asked until it is placed, then as held.
    amounts = models.JSONField(default=dict, blank=True)
    priority = models.SmallIntegerField(default=0)
    preemptible = models.BooleanField(default=True)
    expected_s = models.PositiveIntegerField(default=28_800)
    # What the queue decided about it, kept so that decisions stand (`scheduling.model.Workload`).
    claimed = models.BooleanField(default=False)
    promised = models.PositiveBigIntegerField(default=0)
    preempted = models.PositiveIntegerField(default=0)
    # It has been asked to leave by then, for whom and why.
    leave_at = models.DateTimeField(null=True, blank=True)
    leave_for = models.CharField(max_length=40, blank=True)
    leave_reason = models.CharField(max_length=12, blank=True)
    # What its user is told while it waits.
    queue_position = models.PositiveIntegerField(null=True, blank=True)
    eta_at = models.DateTimeField(null=True, blank=True)
    eta_basis = models.CharField(max_length=200, blank=True)
    blocker = models.JSONField(default=dict, blank=True)

    # Why it waits, or why it failed: shown to the user as it stands.
    error_code = models.CharField(max_length=60, blank=True)
    error_message = models.TextField(blank=True)
    log_tail = models.TextField(blank=True)

    endpoint = models.CharField(max_length=200, blank=True)
    activity = models.JSONField(default=dict, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    gpu_idle_since = models.DateTimeField(null=True, blank=True)

    created_at = models.DateTimeField(auto_now_add=True)
    state_since = models.DateTimeField()
    requested_at = models.DateTimeField()
    admitted_at = models.DateTimeField(null=True, blank=True)
    placed_at = models.DateTimeField(null=True, blank=True)
    # The checks of its devices before it is started, where they were needed.
    checks_began_at = models.DateTimeField(null=True, blank=True)
    checks_ended_at = models.DateTimeField(null=True, blank=True)
    launched_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)

    objects = models.Manager.from_queryset(WorkspaceQuerySet)()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "team", "name"],
                condition=~Q(state=State.TERMINATED),
                name="workspace_name_unique",
                violation_error_message="You have a workspace of this name in this team.",
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
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def external_name(self) -> str:
        return external_name(str(self.pk))

    @property
    def origin(self) -> str:
        """The workspace's own origin, e.g. `http://ws-0f….localhost:8000`."""
        scheme, _, rest = settings.BERTH_PUBLIC_URL.partition("://")
        _, colon, port = rest.partition(":")
        return f"{scheme}://{self.external_name}.{settings.BERTH_DOMAIN}{colon}{port}"

    @property
    def waits_for_checks(self) -> bool:
        """Whether its devices are being checked, so that nothing has been started yet."""
        return self.checks_began_at is not None and self.checks_ended_at is None and self.launched_at is None

    @property
    def request(self) -> ResourceRequest:
        """What it asks for, as a value. Raises ValueError for a row that cannot be read."""
        return messages.load(self.resources, ResourceRequest)

    @property
    def simulated(self) -> bool:
        """Whether nothing real runs behind it: decided by its flavor, before it has a pool."""
        return self.flavor.simulated or (self.pool is not None and self.pool.simulated)


class IdempotencyKey(models.Model):
    """The answer to a creation, kept for a day, so that a repeated request creates nothing."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=120)
    request_digest = models.CharField(max_length=64)
    workspace = models.ForeignKey(Workspace, null=True, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_unique")]

    def __str__(self) -> str:
        return self.key
