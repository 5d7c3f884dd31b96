"""Versions of rows that people and programs edit: `ETag`, `If-Match`, and the same for forms.

A row's version changes with what people edit of it: it is made of its `version_state`, a tuple that begins
with its key, and where it has none of its key and `updated_at`. A service takes the versions that the
caller has seen as `expected` and compares them under the row's lock; an empty set accepts any, as `If-Match`
is never demanded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from django.http import HttpRequest, QueryDict
from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.errors import PreconditionFailed
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

ANY: frozenset[str] = frozenset()
NOTHING = "none"
"""The version of what is not there: who saw nothing does not overwrite what has been made since."""
FORM_FIELD = "version"
"""The hidden field in which a form carries the version that it was made of."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only while it is as in the answer that had this `ETag`; 412 says who changed it since.",
)


def version_of(row: Any, *more: object) -> str:
    """16 hex digits that change with what is edited of the row, and with `more`; `NOTHING` without a row."""
    if row is None:
        return NOTHING
    state = getattr(row, "version_state", None) or (row.pk, row.updated_at)
    # As JSON: a dictionary has no order there, and a moment in any zone is written the same.
    parts = json.dumps([*state, *more], sort_keys=True, default=str)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def etag_of(row: Any, *more: object) -> str:
    """The version as a weak `ETag`: two answers that differ only in their form have the same."""
    return f'W/"{version_of(row, *more)}"'


def headers_of(row: Any, *more: object) -> dict[str, str]:
    """What an answer with the row carries, so that it can be changed by `If-Match`."""
    return {"ETag": etag_of(row, *more), "Cache-Control": "private, no-cache"}


def tagged(answered: Response, row: Any, *more: object) -> Response:
    """The answer with `headers_of` the row."""
    for name, value in headers_of(row, *more).items():
        answered[name] = value
    return answered


def expected_in(form: QueryDict, field: str = FORM_FIELD) -> frozenset[str]:
    """The version in a field of a form; `ANY` where it has none."""
    version = str(form.get(field, ""))
    return frozenset({version}) if version else ANY


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
    return expected_in(request.POST) if isinstance(request, HttpRequest) else ANY


def require_expected(
    expected: Collection[str], row: Any, *more: object, name: str, by: str | None = None
) -> None:
    """Compare with a row that is locked; None, where it is gone or was never there, is `NOTHING`.

    `by` is who changed it last, as people know them, where that is recorded.
    Raises `PreconditionFailed` (412, `changed_meanwhile`).
    """
    if not expected or version_of(row, *more) in expected:
        return
    if by is None:
        reason = Reason(CommonCode.CHANGED_SINCE, {"name": name})
        raise PreconditionFailed(reason, code=ProblemCode.CHANGED_MEANWHILE)
    raise PreconditionFailed(
        Reason(CommonCode.CHANGED_BY_SOMEBODY, {"name": name, "by": by}),
        code=ProblemCode.CHANGED_MEANWHILE,
        changed_by=by,
    )


class TaggedViewSet:
    """Mixin for a resource that can be read and edited: what answers with one row has its `ETag`."""

    def answer(self, row: Any, *, status: int = 200, **headers: str) -> Response:
        answered: Response = super().answer(  # type: ignore[misc]
            row, status=status, **headers_of(row), **headers
        )
        return answered

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.answer(self.get_object())  # type: ignore[attr-defined]
