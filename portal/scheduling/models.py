"""The scheduler's own rows."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class QueueState(models.Model):
    """The state of the queue: a single row, written by each scheduling cycle.

    `last_reservation_seq` is the number of the newest back-fill reservation. `seen_generation` is the last
    change of the feed that the last cycle could know of: as long as there is no later one, nothing has
    changed. `shown_generation` is the same for what all that wait were last told, at `shown_at`; working that
    out and writing it took `shown_ms`.
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
    """One entry of the feed that keeps the snapshot caches of all processes up to date.

    It is written in the transaction of the change itself. Its id is the generation: a cache that has taken
    in every entry up to it is as of that generation. Old entries are deleted (`snapshot_feed.trim`).
    """

    kind = models.CharField(max_length=8, choices=ChangeKind)
    key = models.UUIDField(null=True, blank=True)
    at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.kind} {self.key or ''}".strip()


class LearntMix(models.Model):
    """The requests that a pool expects, as learnt from the last ones (`portal.scheduling.request_mix`).

    Kept so that every process decides by the same mix, and so that it survives a restart. `requests` is how
    many it was learnt from, `learnt_until` when the latest of them was made (None: there was none),
    `looked_until` when the latest was made before scarcity was last looked at. `shapes` is in the form of
    `RequestMix.as_json`.
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
    """What has become of a move."""

    UNDER_WAY = "", _("Under way")
    ARRIVED = "arrived", _("Moved")
    ELSEWHERE = "elsewhere", _("Went elsewhere")
    STAYED = "stayed", _("Stayed")


class Move(models.Model):
    """A workspace that runs is asked to leave, and goes to another place that was free for it.

    `source` and `target` are placements in their JSON form (`provisioning.messages`). The notice itself is a
    `workspaces.Preemption`; `generation` is the start that it was given to. `left_at` is when it was stopped:
    from then on the queue gives it its target before any other place. Ended rows are kept for a while, since
    nobody is moved again so soon, nor back.
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
