"""Parsing of pasted lists of people."""

from __future__ import annotations

import pytest

from portal.common.errors import InvalidInput
from portal.people.accounts.invitations.lines import MAX_PEOPLE, MAX_TEXT, InvitationLine, parse_list


def test_separators_headers_quotes_and_empty_lines_are_tolerated() -> None:
    text = (
        "\ufeffE-mail,Role\r\ngina@example.org, Owner\n\nhal;viewer\nina\tmember\t\n"
        '"Li, Jo" <jo@x.org>,\n "kim" '
    )
    assert parse_list(text) == [
        InvitationLine(2, "gina@example.org", "owner"),
        InvitationLine(4, "hal", "viewer"),
        InvitationLine(5, "ina", "member"),
        InvitationLine(6, "jo@x.org"),
        InvitationLine(7, "kim"),
    ]


def test_addresses_on_one_line_are_split_and_extra_columns_marked() -> None:
    assert parse_list("a@x.org; B <b@x.org>") == [InvitationLine(1, "a@x.org"), InvitationLine(1, "b@x.org")]
    assert parse_list("a@x.org,owner,Room 5")[0].excess
    assert [line.who for line in parse_list("anna\nuser")] == ["anna", "user"], "a header is the first line"


@pytest.mark.parametrize("text", ["", " \n\t\n", "username", "a\n" * (MAX_PEOPLE + 1), "a" * (MAX_TEXT + 1)])
def test_empty_and_long_lists_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_list(text)
