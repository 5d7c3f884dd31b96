"""Measured use of devices: by the minute for some days, by the hour for about a year.

A metric that was not measured is NULL, never 0; a minute in which nothing was measured has no row. Who
held a device at the time follows from the allocations and is not stored again.
"""

from __future__ import annotations

from django.db import models

from portal.fleet.inventory.models.capacity import Device


class DeviceSeries(models.Model):
    """A device that has samples: the small key of its rows, and where its measurements stand.

    `newest_s` is the end of the newest minute (UTC seconds since the epoch); `idle_since_s` the begin of
    the unbroken idle time that reaches up to it, NULL while the device works or is not measured whole;
    `due_s` the oldest hour that has to be rolled up again, NULL when none has.
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
    """One device for one span. Its key is the device and the begin of the span, and is its only index.

    `measured_s` seconds were sampled. `gpu_s` of these tell how busy the GPU was: `gpu_pct_s` is the sum
    of percent × seconds, so that spans add up without loss, and `gpu_used_s` the seconds above 0 %. Other
    means are whole numbers. `throttle_s` seconds tell whether clocks were held down; a second may count
    in more than one of `thermal_s` (heat), `power_s` (power limits) and `slowed_s` (other reasons).
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
    """A minute. `gpu_bins` are pairs of bytes (percent, seconds), from which the hour's p95 is exact."""

    pk = models.CompositePrimaryKey("series_id", "start_s")
    series = models.ForeignKey(DeviceSeries, on_delete=models.CASCADE, related_name="minutes", db_index=False)
    gpu_bins = models.BinaryField(null=True)

    def __str__(self) -> str:
        return f"{self.series_id} at {self.start_s}"


class DeviceHour(DeviceSpan):
    """An hour, made of its minutes."""

    pk = models.CompositePrimaryKey("series_id", "start_s")
    series = models.ForeignKey(DeviceSeries, on_delete=models.CASCADE, related_name="hours", db_index=False)

    def __str__(self) -> str:
        return f"{self.series_id} at {self.start_s}"
