"""What GPUs did on each day, added up: what reports read."""

from __future__ import annotations

from django.db import models


class Dimension(models.TextChoices):
    """By what the figures of a day are broken down; `ALL` is one row for everything."""

    ALL = "all", "Everything"
    TEAM = "team", "Team"
    USER = "user", "User"
    FLAVOR = "flavor", "Flavor"
    MODEL = "model", "Model"
    NODE = "node", "Node"


class GpuDay(models.Model):
    """A day (UTC) of the site (`team` empty) or of one team, for one `key` of a dimension.

    `team` and `key` are names as people write them (slug, user name, model, `pool/node`): they outlive what
    they name. Amounts are thousandths of a GPU-second. `capacity`, `measured` and `used` are of devices,
    whoever had them: only the site's rows by `ALL`, `MODEL` and `NODE` have them. `used` is utilisation added
    up: an hour at 50 % is half an hour. The `held_` ones are the same of the time in which a workspace had
    the device: `held` is all of it. What was not measured is in neither `used` nor idle.
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
    # In thousandths of a cent, at the prices of the day on which it was added up.
    cost = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            # Also the index by which a span of one team and dimension is read.
            models.UniqueConstraint(fields=["team", "dimension", "day", "key"], name="gpu_day_once")
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.team or 'site'} {self.dimension} {self.key}"


class GpuMonth(models.Model):
    """A whole month (its first day) of `GpuDay`, added up by team, dimension and key, for spans of many days.

    `made_of` says of which days it was made: it counts only while these are the days that there are.
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
            # Also the index by which a span of one team and dimension is read.
            models.UniqueConstraint(fields=["team", "dimension", "month", "key"], name="gpu_month_once")
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.team or 'site'} {self.dimension} {self.key}"


class MonthlyReport(models.Model):
    """The owners of a team have been told of a month (its first day): written together with their notices."""

    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    month = models.DateField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["month", "team"], name="monthly_report_once")]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} of {self.team_id}"
