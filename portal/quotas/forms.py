"""Numbers as people type them: parsed into base units, or refused at their field."""

from __future__ import annotations

from portal.common.errors import InvalidInput
from portal.common.formatting import parse_input, units_per_whole


def parse_amount(text: str, resource: str, field: str) -> int:
    """A number in people's units (1.5 GPUs, 64 GiB) as base units. Raises `InvalidInput`."""
    return parse_number(text, units_per_whole(resource), field)


def parse_amount_or_none(text: str, resource: str, field: str) -> int | None:
    """The same, and nothing for an empty field."""
    return parse_amount(text, resource, field) if text.strip() else None


def parse_number(text: str, units: int, field: str) -> int:
    """A number with or without decimals, times `units`, as an integer. Raises `InvalidInput`."""
    try:
        return parse_input(text, units)
    except ValueError:
        sentence = "Type a number from 0 on, such as 4 or 1.5."
        raise InvalidInput(sentence, errors={field: [sentence]}) from None
