"""The scheduler's own rows."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


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
