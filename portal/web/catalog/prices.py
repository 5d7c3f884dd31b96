"""Prices of flavors, from the ledger's rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from portal.common.formatting import format_number
from portal.quota.ledger import accounting, spending

PER_GPU = 1_000_000
"""The rate of a GPU that costs one GPU-hour per hour."""


def hourly(charges: Iterable[Mapping[str, int]]) -> tuple[float, float]:
    """Return the minimum and maximum GPU-hours per hour, which depend on the model."""
    weights = spending.weights()
    rates = [accounting.burn_rate([charge], weights) for charge in charges]
    return (min(rates) / PER_GPU, max(rates) / PER_GPU) if rates else (0.0, 0.0)


def format_price(price: tuple[float, float]) -> str:
    """Return the price without a unit: `2` or `1–2.5`."""
    low, high = (format_number(amount, 3) for amount in price)
    return low if low == high else f"{low}–{high}"
