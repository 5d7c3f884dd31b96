"""What a flavor costs, by the rates of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from portal.common.formatting import format_number
from portal.quota.ledger import accounting, spending

PER_GPU = 1_000_000
"""The rate of one GPU that costs one GPU-hour an hour."""


def hourly(charges: Iterable[Mapping[str, int]]) -> tuple[float, float]:
    """GPU-hours that an hour of it takes: the least and the most, by the model that it gets."""
    weights = spending.weights()
    rates = [accounting.burn_rate([charge], weights) for charge in charges]
    return (min(rates) / PER_GPU, max(rates) / PER_GPU) if rates else (0.0, 0.0)


def in_words(price: tuple[float, float]) -> str:
    """The figure without a unit: `2`, or `1–2.5`."""
    low, high = (format_number(each, 3) for each in price)
    return low if low == high else f"{low}–{high}"
