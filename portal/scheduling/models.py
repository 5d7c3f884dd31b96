"""Models of the scheduler."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class QueueState(models.Model):
    """The state of the queue: a single row, written by each scheduling cycle.

    - `last_reservation_seq`: number of the newest back-fill reservation.
    - `seen_generation`: last feed entry known to the last cycle. Without a later one, nothing has changed.
    - `shown_generation`, `shown_at`: last feed entry known to the last status update, and its time.
    - `took_ms`, `shown_ms`: duration of the last cycle, and of the last status update.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    last_reservation_seq = models.PositiveBigIntegerField(default=0)
    seen_generation = models.PositiveBigIntegerField(default=0)
    decided_at = models.DateTimeField(null=True, blank=True)
    took_ms = models.PositiveIntegerField(default=0)
    shown_generation = models.PositiveBigIntegerField(default=0)
    shown_at = models.DateTimeField(null=True, blank=True)
    shown_ms = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="queue_state_single")]

    def __str__(self) -> str:
        return "queue"


class ChangeKind(models.TextChoices):
    """The kinds of changes in the feed."""

    WORKLOAD = "workload", "One workload"
    NODE = "node", "One node and its devices"
    CAPACITY = "capacity", "Pools, and which nodes and devices there are"
    LIMITS = "limits", "Teams, cohorts, quotas, budgets and reservations"
    MIX = "mix", "The requests that pools expect"


class SnapshotChange(models.Model):
    """One entry of the feed that updates the snapshot caches of all processes.

    Written in the transaction of the change itself. The id is the generation: a cache that has applied all
    entries up to an id is as of that generation. Old entries are deleted (`snapshot_feed.trim`).
    """

    kind = models.CharField(max_length=8, choices=ChangeKind)
    key = models.UUIDField(null=True, blank=True)
    at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.key or ''}".strip()


class LearntMix(models.Model):
    """The requests that a pool expects, learnt from the last ones (`portal.scheduling.request_mix`).

    Stored so that all processes use the same mix, even after a restart.

    - `requests`: number of requests from which the mix was learnt.
    - `learnt_until`: creation time of the latest of these requests (None without requests).
    - `looked_until`: creation time of the latest request when scarcity was last measured.
    - `shapes`: the form of `RequestMix.as_json`.
    """

    pool = models.OneToOneField(
        "inventory.Pool", primary_key=True, on_delete=models.CASCADE, related_name="learnt_mix"
    )
    shapes = models.JSONField(default=list)
    requests = models.PositiveIntegerField(default=0)
    learnt_until = models.DateTimeField(null=True, blank=True)
    looked_until = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"mix of {self.pool_id}"


class MoveOutcome(models.TextChoices):
    """The outcome of a move."""

    UNDER_WAY = "", _("In progress")
    ARRIVED = "arrived", _("Moved")
    ELSEWHERE = "elsewhere", _("Started elsewhere")
    STAYED = "stayed", _("Not moved")


class Move(models.Model):
    """A move of a running workspace to a placement that was free.

    `source` and `target` are placements in their JSON form (`provisioning.messages`). The pending stop is a
    `workspaces.Preemption`; `generation` is the start that has to stop. `left_at` is when the workspace was
    stopped: from then on, the queue tries its target before any other node. Ended rows are kept for a while
    to prevent repeated moves and moves back.
    """

    workspace = models.ForeignKey("workspaces.Workspace", on_delete=models.CASCADE, related_name="moves")
    generation = models.PositiveIntegerField()
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    source = models.JSONField()
    target = models.JSONField()
    asked_at = models.DateTimeField(db_index=True)
    left_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=9, choices=MoveOutcome, blank=True, default=MoveOutcome.UNDER_WAY)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workspace"], condition=Q(ended_at=None), name="move_under_way_once"
            )
        ]

    def __str__(self) -> str:
        return f"move of {self.workspace_id}"
