from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.quota.ledger.accounting import (
    GPU_HOUR,
    Account,
    WarningPercent,
    burn_rate,
    lasts_until_s,
    tick,
    with_credit,
    with_refill,
)
from tests.suite.choice import examples

DAY = 86400
ONE_GPU = burn_rate([{"gpu:a": 1000, "cpu_milli": 4000}], {})


def account(hours: int, **more) -> Account:
    return Account(hours * GPU_HOUR, 30 * DAY, 0, 0, **more)


def test_gpu_hours_are_weighted_by_the_rate_of_the_model():
    assert tick(account(10), ONE_GPU, 3600, tick_s=60).account.balance == 9 * GPU_HOUR
    double = burn_rate([{"gpu:h100": 1000}], {"gpu:h100": 2000})
    assert tick(account(10), double, 3600, tick_s=60).account.balance == 8 * GPU_HOUR


def test_warnings_come_once_at_80_and_100_per_cent():
    first = tick(account(10), ONE_GPU, 8 * 3600, tick_s=60)
    assert first.warnings == (WarningPercent.NEAR,)
    assert tick(first.account, ONE_GPU, 8 * 3600 + 60, tick_s=60).warnings == ()
    last = tick(first.account, ONE_GPU, 10 * 3600, tick_s=60)
    assert last.warnings == (WarningPercent.SPENT,)
    assert last.exhausted and not last.account.is_funded


def test_late_accounting_charges_one_tick_below_zero_and_records_the_rest():
    late = tick(account(1), ONE_GPU, 5 * 3600, tick_s=60).account
    assert late.balance == -60 * 1000
    assert late.unbilled == 4 * GPU_HOUR - 60 * 1000


def test_new_period_refills_and_keeps_credit_and_debt():
    spent = tick(account(10, credit=2 * GPU_HOUR), ONE_GPU, 11 * 3600, tick_s=60).account
    fresh = with_refill(spent, 30 * DAY)
    assert (fresh.balance, fresh.credit, fresh.warned) == (11 * GPU_HOUR, GPU_HOUR, 0)
    debt = tick(account(1), ONE_GPU, 3600 + 60, tick_s=60).account
    assert with_refill(debt, 30 * DAY).balance == GPU_HOUR - 60 * 1000


def test_tick_across_a_period_end_charges_both_periods():
    begun = Account(10 * GPU_HOUR, DAY, 0, DAY - 3600)
    after = tick(begun, ONE_GPU, DAY + 3600, tick_s=7200).account
    assert (after.period_start_s, after.spent) == (DAY, GPU_HOUR)


def test_credit_funds_the_account_and_its_end_is_estimated():
    empty = tick(account(1), ONE_GPU, 3600, tick_s=60).account
    more = with_credit(empty, GPU_HOUR)
    assert more.is_funded and more.warned == 0
    assert lasts_until_s(more, ONE_GPU) == 7200
    assert lasts_until_s(more, 0) is None


def test_earlier_tick_is_refused():
    with pytest.raises(ValueError):
        tick(tick(account(1), 0, 100, tick_s=60).account, 0, 50, tick_s=60)


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 3 * 3600)), max_size=30))
def test_balance_is_never_more_than_one_tick_below_zero(hours, steps):
    now, state = 0, account(hours)
    charged = 0
    for milli, seconds in steps:
        rate = burn_rate([{"gpu:a": milli}], {"gpu:a": 1337})
        before = state.balance
        now += seconds
        charged += rate * seconds
        state = tick(state, rate, now, tick_s=60).account
        assert state.balance >= min(before, -(rate * 60 // 1000) - 1)
        assert (state.spent + state.unbilled) * 1000 + state.carry == charged
