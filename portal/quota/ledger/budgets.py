"""Budgets in money: what a team may spend per month (UTC), and what it has spent.

`portal.reports` sums spending from allocations at the prices of flavors, and reports it here at least hourly.
Owners are warned at the same levels as for GPU-hours. Each budget sets whether it blocks new starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import formats, timezone
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_money
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.people.accounts.selectors import owners_of
from portal.quota.ledger.accounting import WarningPercent
from portal.quota.ledger.codes import LedgerCode
from portal.quota.ledger.domain_events import BudgetChanged
from portal.quota.ledger.models import Budget
from portal.quota.limits import policies

CENTS = 100
MILLI = 1000
"""Thousandths per cent in spent amounts."""
MAX_CENTS = 10**12


def level(amount_cents: int, spent: int) -> int:
    """Return the highest warning level reached, in percent; 0 for none."""
    return max(
        (
            warning
            for warning in WarningPercent
            if spent > 0 and spent * 100 >= amount_cents * MILLI * warning
        ),
        default=0,
    )


def month_of(moment: datetime) -> date:
    """Return the first day of the month (UTC)."""
    return moment.astimezone(UTC).date().replace(day=1)


@dataclass(frozen=True, slots=True)
class BudgetStatement:
    """A team's budget in a month; amounts in hundredths of the currency."""

    team: Team
    month: date
    amount_cents: int
    spent_cents: int
    blocks: bool
    summed_at: datetime | None

    @property
    def version_state(self) -> tuple[object, ...]:
        """The version state of the budget."""
        return (self.team.pk, self.amount_cents, self.blocks)

    @property
    def percent(self) -> int:
        """The spent part in percent. With a budget of 0, 100 once anything is spent."""
        if not self.amount_cents:
            return 100 if self.spent_cents else 0
        return 100 * self.spent_cents // self.amount_cents

    @property
    def spent_text(self) -> str:
        return format_money(self.spent_cents / CENTS)

    @property
    def amount(self) -> str:
        return format_money(self.amount_cents / CENTS)

    @property
    def form_value(self) -> str:
        """The amount as typed in a form."""
        return f"{self.amount_cents / CENTS:.2f}"

    @property
    def month_name(self) -> str:
        return formats.date_format(self.month, "F Y")


def statement_of(row: Budget, *, month: date | None = None) -> BudgetStatement:
    """Return the statement for the month (default: the current one). Spending in other months counts as 0."""
    month = month or month_of(timezone.now())
    present = row.month == month
    return BudgetStatement(
        team=row.team,
        month=month,
        amount_cents=row.amount_cents,
        spent_cents=row.spent // MILLI if present else 0,
        blocks=row.blocks,
        summed_at=row.summed_at if present else None,
    )


def statement(team: Team) -> BudgetStatement | None:
    """Return the team's statement, or None without a budget."""
    row = Budget.objects.select_related("team").filter(team=team).first()
    return statement_of(row) if row is not None else None


def budgets_for(actor: User) -> QuerySet[Budget]:
    """Return the budgets that the actor may see."""
    budgets = Budget.objects.select_related("team")
    if policies.sees_every_team(actor):
        return budgets
    return budgets.filter(team__memberships__user=actor)


def budget_for(actor: User, slug: str) -> BudgetStatement:
    """Return the team's statement. Raises `NotFound` if the team is not visible or has no budget."""
    team = Team.objects.filter(slug=slug).first()
    if team is None:
        raise NotFound(Reason(LedgerCode.NO_TEAM_OF_LEDGER))
    policies.require_view_team(actor, team)
    result = statement(team)
    if result is None:
        raise NotFound(Reason(LedgerCode.NO_BUDGET, {"team": team.name}))
    return result


def blocked_teams() -> frozenset[UUID]:
    """Return the teams with a spent budget that blocks starts of paid workspaces."""
    spent = Budget.objects.filter(blocks=True, month=month_of(timezone.now()))
    blocked = spent.filter(spent__gt=0, spent__gte=F("amount_cents") * MILLI)
    return frozenset(blocked.values_list("team_id", flat=True))


@transaction.atomic
def set_budget(
    *,
    actor: User | SystemActor,
    team: Team,
    amount_cents: int,
    blocks: bool = False,
    expected: frozenset[str] = etags.ANY,
) -> Budget:
    """Set a team's budget per month. Operators only.

    Spending in the current month is unchanged. Raises `NotAllowed`, `InvalidInput`, `PreconditionFailed`.
    """
    policies.require_set_limits(actor)
    if not 0 <= amount_cents <= MAX_CENTS:
        wrong = Reason(LedgerCode.BUDGET_OUT_OF_RANGE)
        raise InvalidInput(wrong, errors={"amount_cents": [wrong]})
    if expected:
        _require_expected(expected, team)
    row, created = Budget.objects.select_for_update().get_or_create(
        team=team, defaults={"amount_cents": amount_cents, "blocks": blocks}
    )
    before = None if created else row.amount_cents
    if not created:
        if (row.amount_cents, row.blocks) == (amount_cents, blocks):
            return row
        row.amount_cents, row.blocks = amount_cents, blocks
        # After an increase, levels that are no longer reached are warned about again.
        row.warned = min(row.warned, level(amount_cents, row.spent))
        row.save(update_fields=["amount_cents", "blocks", "warned"])
    money = format_money(amount_cents / CENTS)
    events.record(
        actor=actor,
        kind=AuditKind.BUDGET_SET,
        team=team,
        message=f"set the budget of {team.name} to {money} per month"
        + (" and blocks new paid workspaces once it is spent" if blocks else ""),
        data={"amount_cents": amount_cents, "before": before, "blocks": blocks},
    )
    emit(BudgetChanged(team))
    return row


@transaction.atomic
def remove_budget(*, actor: User | SystemActor, team: Team, expected: frozenset[str] = etags.ANY) -> None:
    """Delete a team's budget. Idempotent."""
    policies.require_set_limits(actor)
    if expected:
        _require_expected(expected, team)
    deleted, _rows = Budget.objects.filter(team=team).delete()
    if deleted:
        events.record(
            actor=actor,
            kind=AuditKind.BUDGET_REMOVED,
            team=team,
            message=f"removed the budget of {team.name}",
        )


def _require_expected(expected: frozenset[str], team: Team) -> None:
    row = Budget.objects.select_for_update().filter(team=team).first()
    etags.require_expected(expected, row, name=_("Budget of %(team)s") % {"team": team.name})


def store_spending(
    month: date, spent: Mapping[str, int], *, now: datetime | None = None, only: Team | None = None
) -> int:
    """Store what each team, by slug, has spent in a month so far. Returns the number of warnings.

    With `only`, stores it for that team alone. Idempotent. Ignored for teams whose stored month is later.
    """
    now = now or timezone.now()
    rows = Budget.objects.order_by("team_id").values_list("team_id", "team__slug")
    rows = rows.filter(team=only) if only is not None else rows
    return sum(_store_team_spending(key, month, spent.get(slug, 0), now) for key, slug in rows)


@transaction.atomic
def _store_team_spending(team_id: UUID, month: date, spent: int, now: datetime) -> int:
    row = Budget.objects.select_for_update(of=("self",)).select_related("team").filter(team=team_id).first()
    if row is None or (row.month is not None and row.month > month):
        return 0
    if row.month != month:
        row.month, row.warned = month, 0
    row.spent, row.summed_at = spent, now
    reached = level(row.amount_cents, spent)
    due = [warning for warning in WarningPercent if row.warned < warning <= reached]
    row.warned = max(row.warned, reached)
    row.save(update_fields=["month", "spent", "summed_at", "warned"])
    for warning in due:
        _warn(row, warning)
    return len(due)


def _warn(row: Budget, warning: WarningPercent) -> None:
    report = statement_of(row, month=row.month)
    named = {"team": row.team.name, "percent": warning.value, "month": report.month_name}
    is_spent = warning is WarningPercent.SPENT
    title = (
        _("%(team)s has spent its budget of %(month)s")
        if is_spent
        else _("%(team)s has spent %(percent)s %% of its budget of %(month)s")
    ) % named
    body = _("%(spent)s of %(amount)s.") % {"spent": report.spent_text, "amount": report.amount}
    if is_spent and row.blocks:
        body += " " + _("New paid workspaces cannot start until next month. Running ones continue.")
    else:
        body += " " + _("This is a soft limit: nothing stops.")
    events.record(
        actor=SYSTEM,
        kind=AuditKind(f"budget.warned_{warning.value}"),
        team=row.team,
        message=f"warned: {title}",
    )
    events.notify(
        owners_of(row.team),
        kind="ledger.budget",
        title=title,
        body=body,
        url=f"/teams/{row.team.slug}/#budget",
    )
