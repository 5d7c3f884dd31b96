"""Services for GPU-hour ledgers: users open and credit them, workloads spend them. Units: `accounting`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common import etags
from portal.common.actors import SYSTEM, SystemActor, label_of
from portal.common.domain_events import emit
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.formatting import format_gpu_hours
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.domain_events import TeamDeletion
from portal.people.accounts.models import Membership, Role, Team, User
from portal.quota.ledger import accounting, spending
from portal.quota.ledger.accounting import Account, WarningPercent
from portal.quota.ledger.codes import LedgerCode
from portal.quota.ledger.models import Budget, EntryKind, LedgerAccount, LedgerEntry, Period
from portal.quota.limits import policies
from portal.quota.limits.domain_events import LimitsChanged
from portal.workspaces.lifecycle import STOPPABLE
from portal.workspaces.models import Workspace

PERIOD_S = {Period.DAY: 86_400, Period.WEEK: 7 * 86_400, Period.MONTH: 30 * 86_400}
MAX_AMOUNT = 10**9 * accounting.GPU_HOUR


def account_of(row: LedgerAccount) -> Account:
    """Return the row in the engine's form."""
    return Account(
        quota=row.quota,
        period_s=PERIOD_S[Period(row.period)],
        period_start_s=int(row.period_started_at.timestamp()),
        at_s=int(row.charged_until.timestamp()),
        credit=row.credit,
        spent=row.spent,
        carry=row.carry,
        unbilled=row.unbilled,
        warned=row.warned,
    )


def store_account(row: LedgerAccount, account: Account) -> None:
    """Write the engine's account to the row."""
    row.period_started_at = datetime.fromtimestamp(account.period_start_s, UTC)
    row.charged_until = datetime.fromtimestamp(account.at_s, UTC)
    row.quota, row.credit, row.spent = account.quota, account.credit, account.spent
    row.carry, row.unbilled, row.warned = account.carry, account.unbilled, account.warned
    row.save()


# --- changes by users ----------------------------------------------------------------------------------


@transaction.atomic
def set_ledger(
    *,
    actor: User | SystemActor,
    team: Team,
    quota: int,
    period: str = Period.MONTH,
    expected: frozenset[str] = etags.ANY,
) -> LedgerAccount:
    """Set a team's GPU-hours per period. Operators only.

    Takes effect at once; spending in the current period is unchanged. Raises `NotAllowed`, `InvalidInput`,
    `PreconditionFailed`.
    """
    policies.require_set_limits(actor)
    problems: dict[str, list[Reason]] = {}
    if not 0 <= quota <= MAX_AMOUNT:
        problems["quota"] = [Reason(LedgerCode.QUOTA_OUT_OF_RANGE)]
    if period not in Period.values:
        problems["period"] = [Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(Period.values)})]
    if problems:
        raise InvalidInput(next(iter(problems.values()))[0], errors=problems)
    now = timezone.now()
    row = LedgerAccount.objects.select_for_update().filter(team=team).first()
    etags.require_expected(expected, row, name=_name(team))
    if row is None:
        row, _created = LedgerAccount.objects.get_or_create(
            team=team,
            defaults={"quota": quota, "period": period, "period_started_at": now, "charged_until": now},
        )
        kind, before = EntryKind.OPENED, 0
    else:
        if (row.quota, row.period) == (quota, period):
            return row
        kind, before = EntryKind.CHANGED, row.quota
        row.quota, row.period = quota, period
        row.save(update_fields=["quota", "period"])
    _create_entry(row, kind, quota - before, actor)
    interval = Period(row.period).label.lower()
    events.record(
        actor=actor,
        kind=AuditKind(f"ledger.{kind.value}"),
        team=team,
        message=f"granted {team.name} {format_gpu_hours(quota)} GPU-hours {interval}",
        data={"quota": quota, "before": before, "period": row.period},
    )
    emit(LimitsChanged())
    return row


@transaction.atomic
def close_ledger(*, actor: User | SystemActor, team: Team, expected: frozenset[str] = etags.ANY) -> None:
    """Close a team's ledger: GPU-hours are no longer counted. Idempotent."""
    policies.require_set_limits(actor)
    if expected:
        row = LedgerAccount.objects.select_for_update().filter(team=team).first()
        etags.require_expected(expected, row, name=_name(team))
    deleted, _rows = LedgerAccount.objects.filter(team=team).delete()
    if deleted:
        events.record(
            actor=actor,
            kind=AuditKind.LEDGER_CLOSED,
            team=team,
            message=f"removed the GPU-hours ledger of {team.name}",
        )
        emit(LimitsChanged())


def _name(team: Team) -> str:
    return _("Ledger of %(team)s") % {"team": team.name}


@transaction.atomic
def credit(*, actor: User | SystemActor, team: Team, amount: int, note: str) -> None:
    """Add credit that is valid until spent; a negative amount reduces credit down to 0.

    For operators and approvers. Raises `NotAllowed`, `NotFound` (the team has no ledger) and `InvalidInput`.
    """
    if not policies.may_decide(actor):
        policies.require_set_limits(actor)
    if amount == 0 or abs(amount) > MAX_AMOUNT:
        wrong = Reason(LedgerCode.CREDIT_OUT_OF_RANGE)
        raise InvalidInput(wrong, errors={"amount": [wrong]})
    row = LedgerAccount.objects.select_for_update().filter(team=team).first()
    if row is None:
        raise NotFound(Reason(LedgerCode.LEDGER_NOT_OPEN, {"team": team.name}))
    before = row.credit
    store_account(row, accounting.with_credit(account_of(row), amount))
    note = strip_nul(note).strip()[:200]
    _create_entry(row, EntryKind.CREDIT, row.credit - before, actor, note)
    verb = "credited" if amount > 0 else "took back from"
    events.record(
        actor=actor,
        kind=AuditKind.LEDGER_CREDIT,
        team=team,
        message=f"{verb} {team.name} {format_gpu_hours(abs(row.credit - before))} GPU-hours"
        + (f": {note}" if note else ""),
        data={"amount": row.credit - before},
    )
    emit(LimitsChanged())


def _create_entry(
    row: LedgerAccount, kind: EntryKind, amount: int, actor: User | SystemActor, note: str = ""
) -> LedgerEntry:
    return LedgerEntry.objects.create(
        account=row,
        at=timezone.now(),
        kind=kind,
        amount=amount,
        balance=account_of(row).balance,
        actor_label=label_of(actor),
        note=note,
    )


# --- changes over time ---------------------------------------------------------------------------------


def tick(*, now: datetime | None = None) -> int:
    """Charge all ledgers for usage since the last tick. Returns the number of ledgers.

    Late or repeated ticks add up to the same.
    """
    now = now or timezone.now()
    keys = list(LedgerAccount.objects.order_by("team_id").values_list("team_id", flat=True))
    for key in keys:
        _tick_one(key, now)
    return len(keys)


@transaction.atomic
def _tick_one(team_id: UUID, now: datetime) -> None:
    row = (
        LedgerAccount.objects.select_for_update(of=("self",))
        .select_related("team")
        .filter(team_id=team_id)
        .first()
    )
    if row is None or row.charged_until >= now:
        return
    before = account_of(row)
    usage = spending.intervals([row.team_id], row.charged_until).get(row.team_id, [])
    periods = spending.rate_periods(usage, spending.weights(), before.at_s, int(now.timestamp()))
    account, warnings = before, set[WarningPercent]()
    for period in periods:
        advance = accounting.tick(account, period.rate, period.end_s, tick_s=settings.BERTH_LEDGER_TICK_S)
        account = advance.account
        warnings |= set(advance.warnings)
    refilled = account.period_start_s > before.period_start_s
    store_account(row, account)
    if refilled:
        _create_entry(row, EntryKind.REFILL, row.quota, SYSTEM)
        events.record(
            actor=SYSTEM,
            kind=AuditKind.LEDGER_REFILL,
            team=row.team,
            message=f"refilled the GPU-hours of {row.team.name}: {format_gpu_hours(row.quota)}",
        )
        emit(LimitsChanged())
    else:
        _spend(row, account.spent - before.spent, now)
        if account.is_funded != before.is_funded:
            emit(LimitsChanged())
    for warning in sorted(warnings):
        _warn(row, warning)


def _spend(row: LedgerAccount, amount: int, now: datetime) -> None:
    """Add spending to the team's entry of the current hour."""
    if amount <= 0:
        return
    hour = now.replace(minute=0, second=0, microsecond=0)
    balance = account_of(row).balance
    entry = row.entries.filter(kind=EntryKind.SPENT, at__gte=hour).order_by("-pk").first()
    if entry is None:
        LedgerEntry.objects.create(
            account=row,
            at=now,
            kind=EntryKind.SPENT,
            amount=-amount,
            balance=balance,
            actor_label=label_of(SYSTEM),
        )
    else:
        entry.amount -= amount
        entry.balance = balance
        entry.save(update_fields=["amount", "balance"])


def _warn(row: LedgerAccount, warning: WarningPercent) -> None:
    left = format_gpu_hours(max(0, account_of(row).balance))
    is_spent = warning is WarningPercent.SPENT
    title = (
        _("%(team)s has no GPU-hours left")
        if is_spent
        else _("%(team)s has used %(percent)s %% of its GPU-hours")
    ) % {"team": row.team.name, "percent": warning.value}
    body = (
        _(
            "New workspaces with GPUs cannot start. Running ones get notice and stop, unless a reclaim "
            "policy lets them continue. Files are kept. Request more GPU-hours, or wait for the refill."
        )
        if is_spent
        else _("%(hours)s left. Stop workspaces that you do not need, or ask for more hours.")
        % {"hours": left}
    )
    events.record(
        actor=SYSTEM,
        kind=AuditKind(f"ledger.warned_{warning.value}"),
        team=row.team,
        message=f"warned: {title}",
    )
    events.notify(
        _notice_recipients(row.team),
        kind="ledger.warning",
        title=title,
        body=body,
        url=f"/teams/{row.team.slug}/",
    )


def _notice_recipients(team: Team) -> Sequence[User]:
    """Return the team's owners, and the users who run its GPU workspaces."""
    of_team = Q(memberships__in=Membership.objects.filter(team=team, role=Role.OWNER))
    runs = Q(workspaces__in=_gpu_workspaces(team))
    return list(User.objects.filter(of_team | runs, is_active=True).distinct())


def _gpu_workspaces(team: Team) -> list[Workspace]:
    costs = spending.weights()
    return [
        workspace
        for workspace in Workspace.objects.filter(team=team, state__in=STOPPABLE).select_related("owner")
        if accounting.burn_rate([workspace.amounts], costs)
    ]


def team_deleted(event: TeamDeletion) -> None:
    """Delete the GPU-hours and the budget of a deleted team. Its costs stay in the reports."""
    LedgerAccount.objects.filter(team=event.team).delete()
    Budget.objects.filter(team=event.team).delete()
