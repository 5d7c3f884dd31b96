"""Models for reports: daily and monthly sums of GPU use, counters for Prometheus, samples for plots."""

from __future__ import annotations

from django.db import models


class Dimension(models.TextChoices):
    """Dimension of daily sums; `ALL` is a single row for everything."""

    ALL = "all", "Everything"
    TEAM = "team", "Team"
    USER = "user", "User"
    FLAVOR = "flavor", "Flavor"
    MODEL = "model", "Model"
    NODE = "node", "Node"


class GpuDay(models.Model):
    """Sums of a day (UTC) for the site (`team` is empty) or a team, for one `key` of a dimension.

    `team` and `key` are names (slug, user name, model, `pool/node`), so they outlive their objects. Amounts
    are in thousandths of a GPU-second. `capacity`, `measured` and `used` are for all devices; only the site's
    rows by `ALL`, `MODEL` and `NODE` have them. `used` is summed utilisation: an hour at 50 % is half an
    hour. The `held_` fields are the same for allocated time, and `held` is the whole allocated time. Time
    without measurements is neither used nor idle.
    """

    day = models.DateField()
    team = models.CharField(max_length=60, blank=True)
    dimension = models.CharField(max_length=6, choices=Dimension)
    key = models.CharField(max_length=255, blank=True)
    capacity = models.BigIntegerField(default=0)
    measured = models.BigIntegerField(default=0)
    used = models.BigIntegerField(default=0)
    held = models.BigIntegerField(default=0)
    held_measured = models.BigIntegerField(default=0)
    held_used = models.BigIntegerField(default=0)
    reclaimed = models.BigIntegerField(default=0)
    waited = models.BigIntegerField(default=0)
    # In thousandths of a cent, at the prices at the time when the sums were written.
    cost = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            # Also the index for a period of one team and dimension.
            models.UniqueConstraint(fields=["team", "dimension", "day", "key"], name="gpu_day_once")
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.team or 'site'} {self.dimension} {self.key}"


class GpuMonth(models.Model):
    """Sums of `GpuDay` for a whole month (its first day), by team, dimension and key.

    `made_of` identifies the days in the sums. The row is valid only while these are the current days.
    """

    month = models.DateField()
    made_of = models.BigIntegerField()
    team = models.CharField(max_length=60, blank=True)
    dimension = models.CharField(max_length=6, choices=Dimension)
    key = models.CharField(max_length=255, blank=True)
    capacity = models.BigIntegerField()
    measured = models.BigIntegerField()
    used = models.BigIntegerField()
    held = models.BigIntegerField()
    held_measured = models.BigIntegerField()
    held_used = models.BigIntegerField()
    reclaimed = models.BigIntegerField()
    waited = models.BigIntegerField()
    cost = models.BigIntegerField()

    class Meta:
        constraints = [
            # Also the index for a period of one team and dimension.
            models.UniqueConstraint(fields=["team", "dimension", "month", "key"], name="gpu_month_once")
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.team or 'site'} {self.dimension} {self.key}"


class Figure(models.TextChoices):
    """Kind of a counter about starts."""

    REQUESTS = "requests", "Requests"
    STARTS = "starts", "Starts"
    FAILURES = "failures", "Failures"
    READY = "ready", "Time from request to ready"


class StartCount(models.Model):
    """A counter of one team. Only `start_counts` writes it.

    `key` is the reason of FAILURES and the upper bound of READY's bucket in seconds, else empty. `seconds` is
    the sum of READY's times.
    """

    figure = models.CharField(max_length=8, choices=Figure)
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=40, blank=True)
    count = models.BigIntegerField(default=0)
    seconds = models.FloatField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["figure", "team", "key"], name="start_count_once")]

    def __str__(self) -> str:
        return f"{self.figure} {self.key} of {self.team_id}"


class PoolSample(models.Model):
    """Number of a pool's devices by state at `start_s` (Unix time), grouped as in `counting.summarize`.

    Only `state_samples` writes it. The key begins with the time, because readers select a range of times.
    """

    pk = models.CompositePrimaryKey("start_s", "pool_id")
    start_s = models.BigIntegerField()
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="+", db_index=False)
    in_use = models.PositiveIntegerField()
    idle = models.PositiveIntegerField()
    free = models.PositiveIntegerField()
    checking = models.PositiveIntegerField()
    maintenance = models.PositiveIntegerField()
    out_of_service = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"pool {self.pool_id} at {self.start_s}"


class StartSample(models.Model):
    """Totals of `StartCount` over all teams at `start_s` (Unix time). Only `state_samples` writes it."""

    start_s = models.BigIntegerField(primary_key=True)
    starts = models.BigIntegerField()
    failures = models.BigIntegerField()

    def __str__(self) -> str:
        return f"starts until {self.start_s}"


class MonthlyReport(models.Model):
    """Records that a team's owners were notified about a month (its first day), in the same transaction."""

    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    month = models.DateField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["month", "team"], name="monthly_report_once")]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} of {self.team_id}"
