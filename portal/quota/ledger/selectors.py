"""Queries for GPU-hour ledgers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.quota.ledger import accounting, spending
from portal.quota.ledger.codes import LedgerCode
from portal.quota.ledger.models import LedgerAccount, LedgerEntry, Period
from portal.quota.ledger.services import account_of
from portal.quota.limits import policies

MAX_ENTRIES = 20


@dataclass(frozen=True, slots=True)
class Statement:
    """A team's ledger in ledger units. `per_hour` is the current rate.

    At that rate, the balance runs out at `lasts_until`; None at rate 0.
    """

    team: Team
    period: str
    period_ends_at: datetime
    quota: int
    credit: int
    spent: int
    balance: int
    unbilled: int
    per_hour: int
    lasts_until: datetime | None
    entries: tuple[LedgerEntry, ...]

    @property
    def version_state(self) -> tuple[object, ...]:
        """The version state of the ledger."""
        return (self.team.pk, self.quota, self.period)

    @property
    def budget(self) -> int:
        return self.quota + self.credit

    @property
    def percent(self) -> int:
        """The spent part of the budget in percent; 100 for a budget of 0."""
        return 100 * self.spent // self.budget if self.budget else 100

    @property
    def tone(self) -> str:
        return (
            "bad"
            if self.percent >= accounting.WarningPercent.SPENT
            else "wait"
            if self.percent >= accounting.WarningPercent.NEAR
            else "ok"
        )

    @property
    def runs_out_before_refill(self) -> bool:
        """Whether the hours run out before the refill at the current rate."""
        return self.lasts_until is not None and self.lasts_until < self.period_ends_at


def statement(team: Team) -> Statement | None:
    """Return the team's current statement, including spending since the last tick; None without a ledger."""
    row = LedgerAccount.objects.filter(team=team).first()
    if row is None:
        return None
    now = timezone.now()
    account = account_of(row)
    usage = spending.intervals([team.pk], row.charged_until).get(team.pk, [])
    rate = 0
    for period in spending.rate_periods(usage, spending.weights(), account.at_s, int(now.timestamp())):
        account, rate = (
            accounting.tick(account, period.rate, period.end_s, tick_s=3600).account,
            period.rate,
        )
    ends = accounting.lasts_until_s(account, rate)
    return Statement(
        team=team,
        period=Period(row.period),
        period_ends_at=datetime.fromtimestamp(account.period_start_s + account.period_s, UTC),
        quota=account.quota,
        credit=account.credit,
        spent=account.spent,
        balance=account.balance,
        unbilled=account.unbilled,
        per_hour=rate * 3600 // 1000,
        lasts_until=datetime.fromtimestamp(ends, UTC) if ends is not None and ends < 1 << 40 else None,
        entries=tuple(row.entries.order_by("-at", "-pk")[:MAX_ENTRIES]),
    )


def ledgers_for(actor: User) -> QuerySet[LedgerAccount]:
    """Return the ledgers that the actor may see."""
    accounts = LedgerAccount.objects.select_related("team")
    if policies.sees_every_team(actor):
        return accounts
    return accounts.filter(team__memberships__user=actor)


def entries_for(actor: User) -> QuerySet[LedgerEntry]:
    """Return the entries of ledgers that the actor may see."""
    return LedgerEntry.objects.filter(account__in=ledgers_for(actor)).select_related("account__team")


def statement_for(actor: User, slug: str) -> Statement:
    """Return the team's statement. Raises `NotFound` if it is not visible or does not exist."""
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        raise NotFound(Reason(LedgerCode.NO_TEAM_OF_LEDGER))
    policies.require_view_team(actor, team)
    result = statement(team)
    if result is None:
        raise NotFound(Reason(LedgerCode.HOURS_NOT_COUNTED, {"team": team.name}))
    return result


def teams_without_hours() -> set[str]:
    """Return the slugs of teams whose GPU-hours are spent."""
    return {
        team
        for team, quota, credit, spent in LedgerAccount.objects.values_list(
            "team__slug", "quota", "credit", "spent"
        )
        if quota + credit - spent <= 0
    }
