"""Parses a pasted list of people, one per line, with an optional role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.invitations.codes import InvitationCode

MAX_PEOPLE = 200
MAX_TEXT = 40_000
MAX_CELL = 254
_SEPARATORS = re.compile(r"[\t,;]")
MAX_NAMED_LINE = 4000
# A name without quotes begins after a separator, so that no text is read more than once.
_NAMED_ADDRESS = re.compile(r'(?:"[^"]*+"\s*+|(?<![^"<>,;\t])[^"<>,;\t]*+)<([^<>\s@]++@[^<>\s]++)>')
_HEADERS = frozenset(
    (
        *("email", "e-mail", "mail", "email address", "e-mail address", "username", "user name", "user"),
        *("name", "account", "member", "people", "person", "who"),
    )
)


@dataclass(frozen=True, slots=True)
class InvitationLine:
    """One person on a list. `who` is an e-mail address or a username; `role` is "" for the default role.

    `number` is the line in the list, from 1. `excess`: the line has more than two columns.
    """

    number: int
    who: str
    role: str = ""
    excess: bool = False


def parse_list(text: str) -> list[InvitationLine]:
    """Return the people on a list whose columns are separated by comma, semicolon or tab.

    Skips a header and empty lines. Reads several addresses on one line as several people. Raises
    `InvalidInput` for an empty list, and for more than `MAX_PEOPLE`.
    """
    text = strip_nul(text).lstrip("\ufeff")
    lines = list(_people(text)) if len(text) <= MAX_TEXT else []
    if len(text) > MAX_TEXT or len(lines) > MAX_PEOPLE:
        raise list_too_long()
    if not lines:
        raise InvalidInput(Reason(InvitationCode.LIST_EMPTY))
    return lines


def list_too_long() -> InvalidInput:
    return InvalidInput(Reason(InvitationCode.LIST_TOO_LONG, {"max": MAX_PEOPLE}))


def _people(text: str) -> Iterator[InvitationLine]:
    first = True
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [_cell(cell) for cell in _SEPARATORS.split(_without_names(line))]
        filled = [cell for cell in cells if cell]
        if not filled:
            continue
        is_header = first and cells[0].lower() in _HEADERS
        first = False
        if is_header:
            continue
        if len(filled) > 1 and all("@" in cell for cell in filled):
            yield from (InvitationLine(number, cell) for cell in filled)
        else:
            yield InvitationLine(number, cells[0], "".join(cells[1:2]).lower(), any(cells[2:]))


def _without_names(line: str) -> str:
    """Return the line with `gina@example.org` for “"Li, Gina" <gina@example.org>”."""
    return _NAMED_ADDRESS.sub(r"\1", line) if "<" in line and len(line) <= MAX_NAMED_LINE else line


def _cell(text: str) -> str:
    return text.strip().strip("\"'").strip()[:MAX_CELL]
