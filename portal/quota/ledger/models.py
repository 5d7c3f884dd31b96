"""Models of GPU-hours and budgets of teams."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Period(models.TextChoices):
    """How often the ledger is refilled."""

    DAY = "day", _("Every day")
    WEEK = "week", _("Every week")
    MONTH = "month", _("Every 30 days")


class LedgerAccount(models.Model):
    """A team's GPU-hours. A team without a ledger has no limit.

    Columns and units are those of `portal.quota.ledger.accounting.Account`, with datetimes instead of
    seconds.
    """

    team = models.OneToOneField(
        "accounts.Team", primary_key=True, on_delete=models.CASCADE, related_name="ledger"
    )
    period = models.CharField(max_length=5, choices=Period, default=Period.MONTH)
    quota = models.PositiveBigIntegerField()
    period_started_at = models.DateTimeField()
    charged_until = models.DateTimeField()
    credit = models.PositiveBigIntegerField(default=0)
    spent = models.PositiveBigIntegerField(default=0)
    carry = models.PositiveIntegerField(default=0)
    unbilled = models.PositiveBigIntegerField(default=0)
    warned = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"ledger of {self.team}"

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.quota, self.period)


class Budget(models.Model):
    """A team's budget per month (UTC), in hundredths of the site's currency.

    `spent` is the amount in `month` (its first day), in thousandths of these, as of `summed_at`. `warned` is
    the highest level, in percent, that owners were notified of.
    """

    team = models.OneToOneField(
        "accounts.Team", primary_key=True, on_delete=models.CASCADE, related_name="budget"
    )
    amount_cents = models.PositiveBigIntegerField()
    blocks = models.BooleanField(default=False)
    month = models.DateField(null=True)
    spent = models.BigIntegerField(default=0)
    warned = models.PositiveSmallIntegerField(default=0)
    summed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"budget of {self.team}"

    @property
    def version_state(self) -> tuple[object, ...]:
        """The editable fields (`portal.common.etags`)."""
        return (self.pk, self.amount_cents, self.blocks)


class EntryKind(models.TextChoices):
    """The kinds of ledger entries."""

    OPENED = "opened", "Opened"
    CHANGED = "changed", "Grant changed"
    REFILL = "refill", "Refilled"
    CREDIT = "credit", "Credit"
    SPENT = "spent", "Spent"


class LedgerEntry(models.Model):
    """One change of a ledger, signed. Spending has one entry per team and hour."""

    account = models.ForeignKey(LedgerAccount, on_delete=models.CASCADE, related_name="entries")
    at = models.DateTimeField(help_text="When it was booked.")
    kind = models.CharField(max_length=8, choices=EntryKind)
    amount = models.BigIntegerField(
        help_text="Change of the balance in weighted milli-GPU-seconds; negative if it was spent."
    )
    balance = models.BigIntegerField(help_text="Balance after the entry, in weighted milli-GPU-seconds.")
    actor_label = models.CharField(max_length=80)
    note = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["account", "-at"], name="ledger_entry_account")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}"
