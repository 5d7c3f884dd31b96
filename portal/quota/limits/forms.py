"""Parses numbers in display units into base units, with errors at their field."""

from __future__ import annotations

from portal.common.errors import InvalidInput
from portal.common.formatting import parse_input, units_per_whole
from portal.common.reasons.reason import Reason
from portal.quota.limits.codes import QuotaCode


def parse_amount(text: str, resource: str, field: str) -> int:
    """Parse an amount in display units (1.5 GPUs, 64 GiB) into base units. Raises `InvalidInput`."""
    return parse_number(text, units_per_whole(resource), field)


def parse_amount_or_none(text: str, resource: str, field: str) -> int | None:
    """Parse an amount like `parse_amount`. Returns None for an empty field."""
    return parse_amount(text, resource, field) if text.strip() else None


def parse_number(text: str, units: int, field: str) -> int:
    """Parse a decimal number times `units` as an integer. Raises `InvalidInput`."""
    try:
        return parse_input(text, units)
    except ValueError:
        reason = Reason(QuotaCode.NUMBER_NOT_UNDERSTOOD)
        raise InvalidInput(reason, errors={field: [reason]}) from None
