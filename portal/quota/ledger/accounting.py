"""Accounts for GPU-hours: a quota per period, spent over time and weighted by model. Integers only.

The unit is the weighted milli-GPU-second: one GPU of weight 1 for an hour is `GPU_HOUR`. Weights are
thousandths. Fractions of a unit are carried over, so any number of ticks adds up to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from portal.quota.limits.types import WEIGHT_ONE, Amounts

GPU_HOUR = 1000 * 3600


class WarningPercent(IntEnum):
    """Percentages of the budget at which the team is warned."""

    NEAR = 80
    SPENT = 100


@dataclass(frozen=True, slots=True)
class Account:
    """A team's budget for the current period.

    - `quota`: amount per period; `credit`: manual credit, valid until spent.
    - `spent`: amount used since `period_start_s`.
    - `carry`: fraction of a unit not charged yet, in thousandths.
    - `unbilled`: usage after the budget was spent.
    """

    quota: int
    period_s: int
    period_start_s: int
    at_s: int
    credit: int = 0
    spent: int = 0
    carry: int = 0
    unbilled: int = 0
    warned: int = 0

    @property
    def budget(self) -> int:
        return self.quota + self.credit

    @property
    def balance(self) -> int:
        """The remaining amount; below 0 by at most the cost of one tick."""
        return self.budget - self.spent

    @property
    def is_funded(self) -> bool:
        return self.balance > 0


@dataclass(frozen=True, slots=True)
class LedgerAdvance:
    """The account after some time, the warnings to send, and whether running work has spent the budget."""

    account: Account
    warnings: tuple[WarningPercent, ...] = ()
    exhausted: bool = False


def burn_rate(amounts: Iterable[Amounts], weights: Mapping[str, int]) -> int:
    """Return the cost of running workloads, in thousandths of a unit per second.

    Models without a weight have weight 1.
    """
    return sum(
        amount * weights.get(resource, WEIGHT_ONE)
        for change in amounts
        for resource, amount in change.items()
        if resource.startswith(("gpu:", "mig:"))
    )


def tick(account: Account, rate: int, now_s: int, *, tick_s: int) -> LedgerAdvance:
    """Charge for the time since the last tick, at `rate` (`burn_rate`).

    Ticks are due every `tick_s` seconds. A late tick lowers the balance below 0 by at most the cost of one
    tick: the rest is `unbilled`. Raises ValueError if time goes backwards.
    """
    if now_s < account.at_s or rate < 0 or tick_s <= 0:
        raise ValueError("time and rate go forward")
    account = with_refill(account, account.at_s)
    result = LedgerAdvance(account)
    # A late tick may span periods: each is charged separately.
    while True:
        period_end_s = account.period_start_s + account.period_s
        until_s = min(now_s, period_end_s)
        account = _charge(account, rate, until_s, tick_s)
        warnings, account = _warnings(account)
        result = LedgerAdvance(account, (*result.warnings, *warnings), rate > 0 and not account.is_funded)
        if now_s < period_end_s:
            return result
        account = with_refill(account, period_end_s)
        result = LedgerAdvance(account, result.warnings, rate > 0 and not account.is_funded)


def _charge(account: Account, rate: int, until_s: int, tick_s: int) -> Account:
    units, carry = divmod(rate * (until_s - account.at_s) + account.carry, WEIGHT_ONE)
    charged = min(units, max(0, account.balance + rate * tick_s // WEIGHT_ONE))
    return replace(
        account,
        at_s=until_s,
        spent=account.spent + charged,
        carry=carry,
        unbilled=account.unbilled + units - charged,
    )


def _warnings(account: Account) -> tuple[tuple[WarningPercent, ...], Account]:
    """Return newly reached thresholds, each once per period."""
    due = tuple(
        level
        for level in WarningPercent
        if level > account.warned and account.spent * 100 >= account.budget * level and account.spent > 0
    )
    return due, replace(account, warned=max(due)) if due else account


def with_refill(account: Account, now_s: int) -> Account:
    """Return the account advanced to the period of `now_s`.

    Unused quota expires. Unused credit and debt carry over.
    """
    periods = (now_s - account.period_start_s) // account.period_s
    if periods <= 0:
        return account
    excess = account.spent - account.quota
    credit = account.credit if excess <= 0 else max(0, account.credit - excess)
    debt = max(0, excess - account.credit) if excess > 0 else 0
    # Each further unused period pays off debt with its quota.
    debt = max(0, debt - (periods - 1) * account.quota)
    return replace(
        account,
        credit=credit,
        spent=debt,
        warned=0,
        period_start_s=account.period_start_s + periods * account.period_s,
    )


def with_credit(account: Account, amount: int) -> Account:
    """Return the account with manual credit. A negative amount reduces credit down to 0."""
    credit = max(0, account.credit + amount)
    level = account.spent * 100
    budget = account.quota + credit
    warned = max((warning for warning in WarningPercent if budget and level >= budget * warning), default=0)
    return replace(account, credit=credit, warned=min(account.warned, warned))


def lasts_until_s(account: Account, rate: int) -> int | None:
    """Return when the balance runs out at this rate (UTC seconds), or None at rate 0."""
    if rate <= 0:
        return None
    return account.at_s + max(0, account.balance) * WEIGHT_ONE // rate
