"""Models of orphans: items without an owner that nodes report, and how they ended."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from provisioning.types import LeftoverKind


class OrphanKind(models.TextChoices):
    """Kind of an orphan. `workspace` is one that runs on a node but is unknown to the portal."""

    WORKSPACE = LeftoverKind.WORKSPACE.value, _("Workspace")
    PROCESS = LeftoverKind.PROCESS.value, _("Process")
    CONTROL_GROUP = LeftoverKind.CONTROL_GROUP.value, _("Control group")
    FOLDER = LeftoverKind.FOLDER.value, _("Folder")
    HOME = LeftoverKind.HOME.value, _("Home folder")


class OrphanState(models.TextChoices):
    """State of an orphan. `gone` means that a later listing did not contain it."""

    FOUND = "found", _("Orphaned")
    REMOVING = "removing", _("Deleting")
    REMOVED = "removed", _("Deleted")
    GONE = "gone", _("Gone")


THERE = (OrphanState.FOUND, OrphanState.REMOVING)


class Orphan(models.Model):
    """One orphan on one node.

    `name` is its identifier on the node; `lease` identifies the command in flight.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+")
    node = models.CharField(max_length=120)
    kind = models.CharField(max_length=16, choices=OrphanKind, help_text="What was found on the node.")
    name = models.CharField(max_length=200)
    detail = models.CharField(max_length=400, blank=True, help_text="Description from the node.")
    size_mib = models.PositiveBigIntegerField(null=True, blank=True)
    state = models.CharField(max_length=8, choices=OrphanState, default=OrphanState.FOUND)
    first_seen_at = models.DateTimeField(help_text="When it was first seen.")
    seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    removed_by = models.CharField(max_length=150, blank=True)
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=1000, blank=True)

    class Meta:
        ordering = ["-first_seen_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "node", "kind", "name"],
                condition=Q(state__in=["found", "removing"]),
                name="orphan_there_unique",
            ),
        ]
        indexes = [models.Index(fields=["state", "seen_at"], name="orphan_state_seen")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} on {self.node}"
