"""Lock that serializes allocation of capacity."""

from __future__ import annotations

from django.db import models


class PlacementLock(models.Model):
    """A single row. Capacity is allocated only in a transaction that holds the lock on this row.

    Other transactions take the lock to prevent allocations meanwhile. Take it before locking any workspace or
    device.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="placement_lock_single")]

    def __str__(self) -> str:
        return "placement lock"

    @classmethod
    def hold(cls) -> None:
        """Wait for the lock, and hold it until the end of the transaction."""
        cls.objects.get_or_create(pk=1)
        cls.objects.select_for_update().get(pk=1)

    @classmethod
    def try_hold(cls) -> bool:
        """Take the lock without waiting. Returns whether it was free."""
        if cls.objects.select_for_update(skip_locked=True).filter(pk=1).exists():
            return True
        if cls.objects.filter(pk=1).exists():
            return False
        cls.objects.get_or_create(pk=1)
        return cls.objects.select_for_update(skip_locked=True).filter(pk=1).exists()
