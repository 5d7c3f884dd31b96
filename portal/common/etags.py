"""Versions of rows that people and programs edit: `ETag`, `If-Match`, and the same for forms.

A row's version changes with each save: it is made of its key and `updated_at` (or of what the caller names
instead). A service takes the versions that the caller has seen as `expected` and compares them under the
row's lock; an empty set accepts any, as `If-Match` is never demanded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any

from django.http import HttpRequest
from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from portal.common.errors import PreconditionFailed
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

ANY: frozenset[str] = frozenset()
FORM_FIELD = "version"
"""The hidden field in which a form carries the version that it was made of."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only while it is as in the answer that had this `ETag`; 412 says who changed it since.",
)


def version_of(row: Any, *more: object) -> str:
    """16 hex digits that change with the row's `updated_at`, and with `more`."""
    parts = (row.pk, row.updated_at, *more)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def etag_of(row: Any, *more: object) -> str:
    """The version as a weak `ETag`: two answers that differ only in their form have the same."""
    return f'W/"{version_of(row, *more)}"'


def expected_by(request: HttpRequest | Request) -> frozenset[str]:
    """The versions in `If-Match`, or in a form's field `version`; `ANY` where neither says one.

    Compared weakly: ours promises that what a person would act on is as it was.
    """
    header = str(request.headers.get("If-Match", "")).strip()
    if header == "*":
        return ANY
    if header:
        # What is no tag at all matches no version: it is a precondition that does not hold.
        return frozenset(tag.removeprefix("W/").strip('"') for tag in parse_etags(header)) or frozenset({""})
    field = request.POST.get(FORM_FIELD, "") if isinstance(request, HttpRequest) else ""
    return frozenset({str(field)}) if field else ANY


def require_expected(expected: Collection[str], row: Any, *more: object, name: str, by: str) -> None:
    """Compare with a row that is locked. `by` is who changed it last, as people know them.

    Raises `PreconditionFailed` (412, `changed_meanwhile`).
    """
    if expected and version_of(row, *more) not in expected:
        raise PreconditionFailed(
            Reason(CommonCode.CHANGED_BY_SOMEBODY, {"name": name, "by": by}),
            code=ProblemCode.CHANGED_MEANWHILE,
            changed_by=by,
        )
