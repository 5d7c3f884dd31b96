"""Home folders: where they lie, how large they are, moves, archives, and what is deleted or lost."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class HomeDeletion(models.Model):
    """The home folder of a deleted account in a team on a node, until the node has said that it has gone.

    `lease` names the one command that may be under way. `problem` is why it is still there, once that has
    been told.
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
    """The node of a pool on which the home of a user in a team lies, where its nodes keep homes apart.

    `used_at` is when the user last started something in the pool, or looked at files; None: not since that is
    kept.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey("inventory.Node", on_delete=models.CASCADE, related_name="+")
    since = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "team", "pool"], name="home_place_unique"),
        ]

    def __str__(self) -> str:
        return f"home of {self.owner_id} in {self.team_id} on {self.node_id}"


class LostHome(models.Model):
    """The home of a user in a team that lies on a machine which was removed.

    Until `recreated_at` nothing of the user's starts in that pool for the team: a home elsewhere would be
    empty, which the user has to want. `used_mib` is what was last measured, None where nothing was.
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
    """How far a move is."""

    ASKED = "asked", _("Waits")
    COPYING = "copying", _("Is copied")
    CHECKING = "checking", _("Is compared")
    DONE = "done", _("Done")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


class EvacuationState(models.TextChoices):
    """How far it is that all homes of a node are moved to another one."""

    GOING = "going", _("Under way")
    DONE = "done", _("Done")
    INCOMPLETE = "incomplete", _("Ended; some homes stayed")
    CANCELLED = "cancelled", _("Cancelled")


class HomeEvacuation(models.Model):
    """All homes on one node shall go to another one of its pool; each goes by a `HomeMove` of its own.

    `source_name` and `target_name` stay when the nodes have gone. `homes` says how many lay there when it was
    asked for. `reason` says why it waits, or ended early.
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
    def going(self) -> bool:
        return self.state == EvacuationState.GOING


class HomeMove(models.Model):
    """A home of a user in a team that goes, or has gone, from one node of a pool to another.

    `source_name` and `target_name` stay when the nodes have gone. `evacuation` is that which has begun it,
    where all homes of the node go. `lease` names the one command that may be under way; `offer` counts the
    tickets by which the target reads. `left` says what is still to be taken away after the end, `target` or
    `source`; `open` is true until nothing is. `reason` says why it waits or failed.
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
        """Whether it can still come to something: nothing of the user's starts there meanwhile."""
        return self.state in ACTIVE_MOVES


ACTIVE_MOVES = (HomeMoveState.ASKED, HomeMoveState.COPYING, HomeMoveState.CHECKING)


class HomeArchiveState(models.TextChoices):
    """What an archive is, or how far."""

    MAKING = "making", _("Being made")
    CHECKING = "checking", _("Being read back")
    EMPTYING = "emptying", _("Whole; the home folder is being emptied")
    READY = "ready", _("Ready")
    RESTORING = "restoring", _("Being restored")
    DELETING = "deleting", _("Being deleted")
    FAILED = "failed", _("Failed")


class HomeArchive(models.Model):
    """An archive of the home of a user in a team, on the node on which the home lay.

    `node_name` stays when the node has gone. `job` names what is under way, `lease` the one command of it;
    `left` says that something is to be taken away on the node, and `open` is true until nothing is, and
    nothing is under way. `bytes_done` is of what is under way, before compression, `stream_bytes` of all of
    it; `size_bytes` is what the archive takes on the disk. `reason` says why it waits or failed.

    After one that `empties` the home is emptied; since `away_at` it is all that there is of the home, until
    one is restored.
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
        """Whether the home is held by it: nothing of the user's starts there meanwhile."""
        return self.state in ACTIVE_ARCHIVES


ACTIVE_ARCHIVES = (
    HomeArchiveState.MAKING,
    HomeArchiveState.CHECKING,
    HomeArchiveState.EMPTYING,
    HomeArchiveState.RESTORING,
)


class HomeUsage(models.Model):
    """What the home of a user in a team takes on a node's disk, as the node has measured it.

    `percent` of the limit is what the user has been told of last: 0, 80, 90 or 100. `over_since` is set
    while there is more than the limit; `hidden` where more is in there than can be seen. Of `files` there may
    be `most_files`, 0 for any number.
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
