"""The lock under which capacity is granted."""

from __future__ import annotations

from django.db import models


class PlacementLock(models.Model):
    """A single row; only the transaction that holds its lock grants capacity.

    Others take it to keep capacity from being granted meanwhile. It is taken before any lock of a
    workspace or a device.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="placement_lock_single")]

    def __str__(self) -> str:
        return "placement lock"

    @classmethod
    def hold(cls) -> None:
        """Wait for the lock; it is given back when the transaction ends."""
        cls.objects.get_or_create(pk=1)
        cls.objects.select_for_update().get(pk=1)

    @classmethod
    def try_hold(cls) -> bool:
        """Take the lock if nobody has it."""
        if cls.objects.select_for_update(skip_locked=True).filter(pk=1).exists():
            return True
        if cls.objects.filter(pk=1).exists():
            return False
        cls.objects.get_or_create(pk=1)
        return cls.objects.select_for_update(skip_locked=True).filter(pk=1).exists()
