"""Row versions in `If-Match` and in hidden form fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from django.test import RequestFactory

from portal.common import etags
from portal.common.errors import PreconditionFailed

AT = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass
class Row:
    pk: int = 1
    updated_at: datetime = AT


def sent(**extra: str) -> frozenset[str]:
    return etags.expected_versions(RequestFactory().patch("/", **extra))  # type: ignore[arg-type]


def test_version_changes_with_the_row_and_extra_values() -> None:
    row = Row()
    assert etags.version_of(row) == etags.version_of(Row())
    others = {
        etags.version_of(Row(updated_at=AT + timedelta(microseconds=1))),
        etags.version_of(Row(pk=2)),
        etags.version_of(row, "more"),
    }
    assert len(others | {etags.version_of(row)}) == 4
    assert etags.etag_of(row) == f'W/"{etags.version_of(row)}"'


@pytest.mark.parametrize("header", ["", "*"])
def test_no_precondition_accepts_any(header: str) -> None:
    assert sent(HTTP_IF_MATCH=header) == etags.ANY
    etags.require_expected(etags.ANY, Row(), name="a", by="ada")


@pytest.mark.parametrize("form", ['"{}"', 'W/"{}"', '"other", W/"{}"'])
def test_matching_etag_is_accepted(form: str) -> None:
    row = Row()
    found = sent(HTTP_IF_MATCH=form.format(etags.version_of(row)))
    etags.require_expected(found, row, name="a", by="ada")


@pytest.mark.parametrize("header", ['"0123456789abcdef"', "no tag at all", '""'])
def test_another_version_is_refused_and_names_the_editor(header: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        etags.require_expected(sent(HTTP_IF_MATCH=header), Row(), name="Data science", by="ada")
    assert refused.value.status == 412
    assert refused.value.code == "changed_meanwhile"
    assert refused.value.extra == {"changed_by": "ada"}
    assert refused.value.reason.params["by"] == "ada"


def test_form_sends_its_version_in_a_hidden_field() -> None:
    row = Row()
    request = RequestFactory().post("/", {"version": etags.version_of(row)})
    assert etags.expected_versions(request) == {etags.version_of(row)}
    assert etags.expected_versions(RequestFactory().post("/", {})) == etags.ANY
