"""Home folders: location, usage, moves, archives, evacuations, deletions and losses."""

from __future__ import annotations

import math
import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

HOME_USE_HALF_LIFE_S = 7 * 86_400
HOME_USE_MEAN_S = round(HOME_USE_HALF_LIFE_S / math.log(2))
"""Sum of the weights of all past seconds. An average is a decayed sum divided by this value."""
NEW_HOME_GPU_MILLI = 1000
NEW_HOME_CPU_MILLI = 1000
"""Assumed average use of a new home."""


class HomeDeletion(models.Model):
    """Pending deletion of a home folder of a deleted account or team, per account, team and node.

    The row exists until the node confirms the deletion. `lease` identifies the one command in flight.
    `problem` is the reason why the folder still exists, once it is reported.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.PROTECT, related_name="+")
    node = models.ForeignKey("inventory.Node", on_delete=models.CASCADE, related_name="+")
    asked_at = models.DateTimeField()
    next_at = models.DateTimeField(db_index=True)
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    problem = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "team", "node"], name="home_deletion_unique"),
        ]

    def __str__(self) -> str:
        return f"deletion of the home of {self.owner_id} in {self.team_id} on {self.node_id}"


class HomePlace(models.Model):
    """The node that holds the home of a user in a team, in a pool with homes on each node.

    - `used_at`: when the user last started a workspace in the pool or viewed files; `None` if not recorded.
    - `gpu_milli_s`, `cpu_milli_s`: decayed sums of the user's use in the pool, as of `measured_at`.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey("inventory.Node", on_delete=models.CASCADE, related_name="+")
    since = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    gpu_milli_s = models.PositiveBigIntegerField(default=NEW_HOME_GPU_MILLI * HOME_USE_MEAN_S)
    cpu_milli_s = models.PositiveBigIntegerField(default=NEW_HOME_CPU_MILLI * HOME_USE_MEAN_S)
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "team", "pool"], name="home_place_unique"),
        ]

    def __str__(self) -> str:
        return f"home of {self.owner_id} in {self.team_id} on {self.node_id}"


class LostHome(models.Model):
    """The home of a user in a team on a machine that was removed.

    Until `recreated_at` is set, the user cannot start workspaces of the team in the pool. The user has to
    agree first, because the home on another node would be empty. `used_mib` is the last measurement, or
    `None`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    node = models.CharField(max_length=120)
    used_mib = models.PositiveBigIntegerField(null=True, blank=True)
    lost_at = models.DateTimeField(help_text="When it was lost.")
    recreated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-lost_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "team", "pool"],
                condition=Q(recreated_at=None),
                name="lost_home_open_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"home of {self.owner_id} in {self.team_id} on the removed {self.node}"


class HomeMoveState(models.TextChoices):
    """State of a home move."""

    ASKED = "asked", _("Queued")
    COPYING = "copying", _("Copying")
    CHECKING = "checking", _("Verifying")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


class EvacuationState(models.TextChoices):
    """State of an evacuation."""

    GOING = "going", _("In progress")
    DONE = "done", _("Done")
    INCOMPLETE = "incomplete", _("Ended, some not moved")
    CANCELLED = "cancelled", _("Cancelled")


class HomeEvacuation(models.Model):
    """Evacuation of all homes of a node to another node of its pool; each home has its own `HomeMove`.

    `source_name` and `target_name` outlive the nodes. `homes` is the number of homes at the time of the
    request. `reason` explains why the evacuation waits or ended early.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    source = models.ForeignKey("inventory.Node", null=True, on_delete=models.SET_NULL, related_name="+")
    target = models.ForeignKey("inventory.Node", null=True, on_delete=models.SET_NULL, related_name="+")
    source_name = models.CharField(max_length=120)
    target_name = models.CharField(max_length=120)
    state = models.CharField(max_length=10, choices=EvacuationState, default=EvacuationState.GOING)
    homes = models.PositiveIntegerField()
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    asked_at = models.DateTimeField(help_text="When it was requested.")
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.JSONField(default=dict, blank=True)
    next_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-asked_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["source"],
                condition=Q(state=EvacuationState.GOING),
                name="home_evacuation_going_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"evacuation of homes from {self.source_name} to {self.target_name}"

    @property
    def is_open(self) -> bool:
        return self.state == EvacuationState.GOING


class HomeMove(models.Model):
    """Move of the home of a user in a team from one node of a pool to another.

    `source_name` and `target_name` outlive the nodes. `evacuation` is set if an evacuation started the move,
    `workspace` if a start waits for the home. `lease` identifies the one command in flight; `offer` counts
    the tickets by which the target reads. `left` is the copy that still has to be removed after the end,
    `target` or `source`; `open` is true until no such copy is left. `reason` explains why the move waits or
    failed.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    source = models.ForeignKey("inventory.Node", null=True, on_delete=models.SET_NULL, related_name="+")
    target = models.ForeignKey("inventory.Node", null=True, on_delete=models.SET_NULL, related_name="+")
    source_name = models.CharField(max_length=120)
    target_name = models.CharField(max_length=120)
    state = models.CharField(max_length=10, choices=HomeMoveState, default=HomeMoveState.ASKED)
    open = models.BooleanField(default=True)
    left = models.CharField(max_length=6, blank=True)
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    evacuation = models.ForeignKey(
        HomeEvacuation, null=True, blank=True, on_delete=models.SET_NULL, related_name="moves"
    )
    workspace = models.ForeignKey(
        "workspaces.Workspace", null=True, blank=True, on_delete=models.SET_NULL, related_name="home_moves"
    )
    asked_at = models.DateTimeField(help_text="When it was requested.")
    started_at = models.DateTimeField(null=True, blank=True, help_text="When it began.")
    ended_at = models.DateTimeField(null=True, blank=True)
    bytes_done = models.PositiveBigIntegerField(default=0, help_text="Bytes copied so far.")
    bytes_total = models.PositiveBigIntegerField(default=0)
    left_out = models.PositiveBigIntegerField(default=0)
    reason = models.JSONField(default=dict, blank=True)
    offer = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(db_index=True)
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-asked_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "team", "pool"], condition=Q(open=True), name="home_move_open_unique"
            ),
        ]

    def __str__(self) -> str:
        return f"move of the home of {self.owner_id} in {self.team_id} to {self.target_name}"

    @property
    def active(self) -> bool:
        """Whether the move can still succeed. Workspaces of the user cannot start there meanwhile."""
        return self.state in ACTIVE_MOVES


ACTIVE_MOVES = (HomeMoveState.ASKED, HomeMoveState.COPYING, HomeMoveState.CHECKING)


class HomeArchiveState(models.TextChoices):
    """State of an archive."""

    MAKING = "making", _("Creating")
    CHECKING = "checking", _("Verifying")
    EMPTYING = "emptying", _("Complete; emptying the home folder")
    READY = "ready", _("Ready")
    RESTORING = "restoring", _("Restoring")
    DELETING = "deleting", _("Deleting")
    FAILED = "failed", _("Failed")


class HomeArchive(models.Model):
    """Archive of a user's home in a team, on the node that held the home.

    `node_name` outlives the node. `job` identifies the running job, `lease` its one command in flight. `left`
    means that files remain to be removed on the node. `open` is true until no job runs and nothing remains to
    be removed. `bytes_done` and `stream_bytes` are the progress and the size of the job, before compression;
    `size_bytes` is the size of the archive on disk. `reason` explains why it waits or failed.

    An archive with `empties` empties the home afterwards. From `away_at` on, the archive is the only copy of
    the home, until it is restored.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey("inventory.Node", null=True, on_delete=models.SET_NULL, related_name="+")
    node_name = models.CharField(max_length=120)
    name = models.CharField(max_length=80)
    state = models.CharField(max_length=10, choices=HomeArchiveState, default=HomeArchiveState.MAKING)
    open = models.BooleanField(default=True)
    left = models.BooleanField(default=False)
    asked_at = models.DateTimeField(help_text="When it was requested.")
    made_at = models.DateTimeField(null=True, blank=True, help_text="When it was created.")
    restored_at = models.DateTimeField(null=True, blank=True)
    empties = models.BooleanField(default=False)
    away_at = models.DateTimeField(null=True, blank=True)
    size_bytes = models.PositiveBigIntegerField(default=0)
    home_bytes = models.PositiveBigIntegerField(default=0)
    entries = models.PositiveBigIntegerField(default=0, help_text="Number of files and folders in it.")
    left_out = models.PositiveBigIntegerField(default=0)
    bytes_done = models.PositiveBigIntegerField(default=0)
    stream_bytes = models.PositiveBigIntegerField(default=0)
    reason = models.JSONField(default=dict, blank=True)
    job = models.CharField(max_length=32, blank=True)
    next_at = models.DateTimeField(db_index=True)
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    restarts = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-asked_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "team", "pool"], condition=Q(open=True), name="home_archive_open_unique"
            ),
            models.UniqueConstraint(
                fields=["owner", "team", "node"],
                condition=Q(away_at__isnull=False),
                name="home_archive_away_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"archive of the home of {self.owner_id} in {self.team_id}"

    @property
    def active(self) -> bool:
        """Whether a job holds the home. Workspaces of the user cannot start there meanwhile."""
        return self.state in ACTIVE_ARCHIVES


ACTIVE_ARCHIVES = (
    HomeArchiveState.MAKING,
    HomeArchiveState.CHECKING,
    HomeArchiveState.EMPTYING,
    HomeArchiveState.RESTORING,
)


class HomeUsage(models.Model):
    """Disk usage of the home of a user in a team on a node, as measured by the node.

    `percent` is the highest threshold of the limit that the user was notified about: 0, 80, 90 or 100.
    `over_since` is set while the home exceeds its limit. `hidden` means that the home has content that could
    not be measured. `most_files` limits `files`; 0 means no limit.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey("inventory.Node", on_delete=models.CASCADE, related_name="+")
    used_mib = models.PositiveBigIntegerField()
    files = models.PositiveBigIntegerField(default=0)
    most_files = models.PositiveBigIntegerField(default=0)
    hidden = models.BooleanField(default=False)
    percent = models.PositiveSmallIntegerField(default=0)
    over_since = models.DateTimeField(null=True, blank=True)
    measured_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "team", "node"], name="home_usage_unique"),
        ]

    def __str__(self) -> str:
        return f"home of {self.owner_id} in {self.team_id} on {self.node_id}"
