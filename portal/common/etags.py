"""Versions of rows for optimistic locking: `ETag`, `If-Match`, and the equivalent for forms.

A version is a digest of the row's `version_state`, a tuple that begins with its key. Default: key and
`updated_at`. Services get the versions that the caller has seen as `expected` and compare them under the
row's lock. An empty set accepts any version, because `If-Match` is optional.
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
"""Version of a missing row. A client that saw no row does not overwrite a row created since."""
FORM_FIELD = "version"
"""Hidden form field with the version that the form was rendered from."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description=(
        "`ETag` of an earlier response. If the resource has changed since, the request fails with 412 "
        "and the name of the last editor."
    ),
)


def version_of(row: Any, *more: object) -> str:
    """Return the version: 16 hex digits derived from the row and `more`, or `NOTHING` without a row."""
    if row is None:
        return NOTHING
    state = getattr(row, "version_state", None) or (row.pk, row.updated_at)
    # JSON with sorted keys, so that dictionary order and time formats do not matter.
    parts = json.dumps([*state, *more], sort_keys=True, default=str)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def etag_of(row: Any, *more: object) -> str:
    """Return the version as a weak `ETag`: representations in different formats share it."""
    return f'W/"{version_of(row, *more)}"'


def headers_of(row: Any, *more: object) -> dict[str, str]:
    """Return the `ETag` and `Cache-Control` headers of a response with this row."""
    return {"ETag": etag_of(row, *more), "Cache-Control": "private, no-cache"}


def with_etag(response: Response, row: Any, *more: object) -> Response:
    """Add the row's `headers_of` to the response and return it."""
    for name, value in headers_of(row, *more).items():
        response[name] = value
    return response


def versions_expected_in_form(form: QueryDict, field: str = FORM_FIELD) -> frozenset[str]:
    """Return the version in a form field as a set, or `ANY` without one."""
    version = str(form.get(field, ""))
    return frozenset({version}) if version else ANY


def expected_versions(request: HttpRequest | Request) -> frozenset[str]:
    """Return the versions in `If-Match`, or in the form field `version`, else `ANY`.

    Versions are compared weakly, because our tags do not promise identical bytes.
    """
    header = str(request.headers.get("If-Match", "")).strip()
    if header == "*":
        return ANY
    if header:
        # A malformed header matches no version, so the precondition fails.
        return frozenset(tag.removeprefix("W/").strip('"') for tag in parse_etags(header)) or frozenset({""})
    return versions_expected_in_form(request.POST) if isinstance(request, HttpRequest) else ANY


def require_expected(
    expected: Collection[str], row: Any, *more: object, name: str, by: str | None = None
) -> None:
    """Compare `expected` with the version of a locked row. Pass None for a missing row (`NOTHING`).

    `by` is the display name of who changed the row last, if recorded. Raises `PreconditionFailed` (412,
    `changed_meanwhile`) if no version matches.
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
    """Mixin for a resource that can be read and edited: responses with one row have an `ETag`."""

    def answer(self, row: Any, *, status: int = 200, **headers: str) -> Response:
        answered: Response = super().answer(  # type: ignore[misc]
            row, status=status, **headers_of(row), **headers
        )
        return answered

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.answer(self.get_object())  # type: ignore[attr-defined]
