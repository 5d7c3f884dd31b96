"""Models of measured CPU, memory and GPU use."""

from __future__ import annotations

from django.db import models

from portal.workspaces.models.workspaces import Workspace


class UsageSpan(models.Model):
    """Use of a workspace in a period that starts at `start_s` (Unix time). NULL means not measured.

    - `cpu_milli`: mean CPU use in thousandths of a core.
    - `memory_mib`: resident memory of all processes.
    - `gpu_pct`, `gpu_memory_mib`: use of shares of GPUs and of MIG instances, as the agent reports it. Whole
      GPUs are not stored here: `inventory.DeviceMinute` and `DeviceHour` have their measurements.

    The key is workspace and start. The second index is for retention. The database has no foreign key
    constraint, which would cost a check per row. Rows of deleted workspaces expire.
    """

    start_s = models.BigIntegerField()
    cpu_milli = models.IntegerField(null=True)
    memory_mib = models.IntegerField(null=True)
    gpu_memory_mib = models.IntegerField(null=True)
    gpu_pct = models.SmallIntegerField(null=True)

    class Meta:
        abstract = True


class UsageMinute(UsageSpan):
    """Use in one minute. Kept for a day, then replaced by hours."""

    pk = models.CompositePrimaryKey("workspace_id", "start_s")
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False
    )

    class Meta:
        indexes = [models.Index(fields=["start_s"], name="usage_minute_start")]

    def __str__(self) -> str:
        return f"use of {self.workspace_id} at {self.start_s}"


class UsageHour(UsageSpan):
    """Use in one hour: the means and maxima of its minutes."""

    pk = models.CompositePrimaryKey("workspace_id", "start_s")
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="+", db_index=False, db_constraint=False
    )
    cpu_max_milli = models.IntegerField(null=True)
    memory_max_mib = models.IntegerField(null=True)
    gpu_memory_max_mib = models.IntegerField(null=True)
    gpu_max_pct = models.SmallIntegerField(null=True)

    class Meta:
        indexes = [models.Index(fields=["start_s"], name="usage_hour_start")]

    def __str__(self) -> str:
        return f"use of {self.workspace_id} at {self.start_s}"
