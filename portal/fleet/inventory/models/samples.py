"""Measured use of devices: per minute for some days, per hour for about a year.

An unmeasured metric is NULL, never 0. A minute without measurements has no row. Allocations show who used a
device, so samples do not.
"""

from __future__ import annotations

from django.db import models

from portal.fleet.inventory.models.capacity import Device


class DeviceSeries(models.Model):
    """A device with samples: the short key for its rows, and the state of its measurements.

    - `newest_s`: end of the newest minute, in UTC seconds since the epoch.
    - `idle_since_s`: start of the uninterrupted idle time up to `newest_s`; NULL while the device is in use
      or not fully measured.
    - `due_s`: oldest hour to roll up again, or NULL.
    """

    id = models.AutoField(primary_key=True)
    device = models.OneToOneField(Device, on_delete=models.CASCADE, related_name="series")
    newest_s = models.BigIntegerField(default=0)
    idle_since_s = models.BigIntegerField(null=True, blank=True)
    due_s = models.BigIntegerField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["due_s"], condition=models.Q(due_s__isnull=False), name="series_due"),
        ]

    def __str__(self) -> str:
        return f"series {self.pk}"


class DeviceSpan(models.Model):
    """Measurements of a device in one time span. The key, and only index, is device and start time.

    `measured_s` seconds were sampled; `gpu_s` of them have GPU utilization. `gpu_pct_s` is the sum of percent
    × seconds, so that spans add up without loss; `gpu_used_s` are the seconds above 0 %. Other means are
    rounded. `throttle_s` seconds have throttle reasons; a second may count in several of `thermal_s` (heat),
    `power_s` (power limits) and `slowed_s` (other reasons).
    """

    start_s = models.BigIntegerField()
    gpu_pct_s = models.IntegerField(null=True)
    memory_mib = models.IntegerField(null=True)
    memory_max_mib = models.IntegerField(null=True)
    power_mw = models.IntegerField(null=True)
    power_max_mw = models.IntegerField(null=True)
    pcie_tx_kib_s = models.IntegerField(null=True)
    pcie_rx_kib_s = models.IntegerField(null=True)
    measured_s = models.SmallIntegerField()
    gpu_s = models.SmallIntegerField(null=True)
    gpu_used_s = models.SmallIntegerField(null=True)
    gpu_max_pct = models.SmallIntegerField(null=True)
    gpu_p95_pct = models.SmallIntegerField(null=True)
    temperature_c = models.SmallIntegerField(null=True)
    temperature_max_c = models.SmallIntegerField(null=True)
    sm_clock_mhz = models.SmallIntegerField(null=True)
    throttle_s = models.SmallIntegerField(null=True)
    thermal_s = models.SmallIntegerField(null=True)
    power_s = models.SmallIntegerField(null=True)
    slowed_s = models.SmallIntegerField(null=True)

    class Meta:
        abstract = True


class DeviceMinute(DeviceSpan):
    """Measurements of one minute. `gpu_bins` are byte pairs (percent, seconds), for an exact hourly p95."""

    pk = models.CompositePrimaryKey("series_id", "start_s")
    series = models.ForeignKey(DeviceSeries, on_delete=models.CASCADE, related_name="minutes", db_index=False)
    gpu_bins = models.BinaryField(null=True)

    def __str__(self) -> str:
        return f"{self.series_id} at {self.start_s}"


class DeviceHour(DeviceSpan):
    """Measurements of one hour, rolled up from its minutes."""

    pk = models.CompositePrimaryKey("series_id", "start_s")
    series = models.ForeignKey(DeviceSeries, on_delete=models.CASCADE, related_name="hours", db_index=False)

    def __str__(self) -> str:
        return f"{self.series_id} at {self.start_s}"
