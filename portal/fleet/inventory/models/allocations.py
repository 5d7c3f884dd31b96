"""Models of allocated capacity."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Allocation(models.Model):
    """Capacity on one node, allocated from placement until it is confirmed to be unused."""

    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.PROTECT, related_name="allocations"
    )
    node = models.ForeignKey("inventory.Node", on_delete=models.PROTECT, related_name="allocations")
    generation = models.PositiveIntegerField()
    # Slug of the flavor at placement: the workspace may have been resized since.
    flavor = models.CharField(max_length=60)
    cpu_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    disk_mib = models.PositiveIntegerField(default=0)
    # From when its use counts. None while the workspace waits at an engine that places by itself.
    granted_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "node"], condition=Q(released_at=None), name="allocation_active_unique"
            )
        ]
        indexes = [
            models.Index(fields=["node"], condition=Q(released_at=None), name="allocation_active_node")
        ]

    def __str__(self) -> str:
        return f"{self.workspace} on {self.node}"


class AllocatedDevice(models.Model):
    """A device, or a share of it, in an allocation. `active` mirrors `released_at` for the constraint."""

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="devices")
    device = models.ForeignKey("inventory.Device", on_delete=models.PROTECT, related_name="allocated")
    milli = models.PositiveIntegerField(default=1000)
    memory_mib = models.PositiveIntegerField(default=0, help_text=_("Memory limit of a share."))
    active = models.BooleanField(default=True)

    class Meta:
        constraints = [
            # Safeguard in addition to the placement lock: a whole device is allocated only once.
            models.UniqueConstraint(
                fields=["device"], condition=Q(active=True, milli=1000), name="device_whole_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.milli} milli of {self.device}"
