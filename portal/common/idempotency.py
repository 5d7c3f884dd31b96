"""Idempotent requests by `Idempotency-Key`.

A key belongs to a user and an endpoint: a REST URL (`answer_once`) or a service operation (`KeyUse`). The
first response is recorded for a day, in the transaction of the work, so a killed process leaves both or
neither. Refusals are not recorded; the key can be reused once the cause is fixed.

Every key is accepted. A key that is long or has spaces is replaced by its digest. An empty key, such as a
script's unset variable, is ignored, because it would match unrelated requests; the header `IGNORED` tells the
client.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.constraints import violates
from portal.common.encrypted_fields import SealedColumn, Unreadable, decrypt, encrypt
from portal.common.errors import StateConflict
from portal.common.json_output import JsonRenderer
from portal.common.models import IdempotencyRecord
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

KEPT_FOR = timedelta(days=1)
HEADER = "Idempotency-Key"
META = "HTTP_IDEMPOTENCY_KEY"
REPLAYED = "Idempotent-Replayed"
IGNORED = "Idempotency-Key-Ignored"
"""Response header with the reason why the key of the request has no effect."""
PURPOSE = "idempotency-record"
SEALED = SealedColumn(IdempotencyRecord, "sealed", lambda _row: PURPOSE)

PARAMETER = OpenApiParameter(
    HEADER,
    {"type": "string"},
    OpenApiParameter.HEADER,
    description=(
        "Any text, unique for each new request. A repeated request with the same key within "
        "24 hours returns the first response with `Idempotent-Replayed: true` and changes "
        "nothing. An empty key is ignored, with `Idempotency-Key-Ignored` in the response."
    ),
)
_KEY = re.compile(r"[\x21-\x7e]{1,120}")
_HEADERS = ("Location", "ETag", "Cache-Control", "Retry-After")


def text_of(request: Request) -> str:
    """Return the key as the client sent it, or "" without one."""
    key: str = request.META.get(META, "")
    return key.strip()


def key_of(request: Request) -> str:
    """Return the key of the request in stored form, or "" without one."""
    key = text_of(request)
    if not key or _KEY.fullmatch(key):
        return key
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def is_ignored(request: Request) -> bool:
    """Return whether the request has an empty key."""
    return META in request.META and not text_of(request)


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A use of `key` by `user` at `endpoint`. `digest` identifies the request (`digest_of`)."""

    user: Any
    endpoint: str
    key: str
    digest: str

    def answer(self) -> dict[str, Any] | None:
        """Return the recorded response, or None for the first use.

        Raises `StateConflict` if the key was used for a different request.
        """
        record = _record(self.user, self.endpoint, self.key)
        if record is None:
            return None
        answer = _decrypt(record)
        if answer.get("asked") != self.digest:
            code = CommonCode.IDEMPOTENCY_KEY_REUSED
            raise StateConflict(Reason(code), code=code)
        return answer

    def claim(self) -> None:
        """Claim the key, in the transaction that does the work.

        Waits for a concurrent request with the same key. Raises `IntegrityError` if that request succeeds
        (`was_claimed`); `answer` then returns its response.
        """
        IdempotencyRecord.objects.create(user=self.user, endpoint=self.endpoint, key=self.key)

    @staticmethod
    def was_claimed(error: IntegrityError) -> bool:
        """Return whether `error` was raised by `claim`."""
        return violates(error, IdempotencyRecord, "idempotency_record_unique")

    def record(self, **answer: Any) -> None:
        """Save the response, in the transaction that claimed the key."""
        sealed = encrypt(json.dumps({"asked": self.digest, **answer}), purpose=PURPOSE)
        rows = IdempotencyRecord.objects.filter(user=self.user, endpoint=self.endpoint, key=self.key)
        rows.update(sealed=sealed)


def recorded_response(*, user: Any, endpoint: str, key: str) -> dict[str, Any]:
    """Return the response recorded for the key at this endpoint, for any request; empty without a record."""
    record = _record(user, endpoint, key)
    return {} if record is None else _decrypt(record)


def digest_of(*parts: Any) -> str:
    """Return a digest that identifies a request."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def answer_once(request: Request, act: Callable[[], Response]) -> Response:
    """Run `act`, or return the response recorded for the request's key.

    A concurrent request with the same key waits for the first and returns its response. Raises what `act`
    raises, and `StateConflict` if the key was used for a different request.
    """
    key = key_of(request)
    if not key:
        return act()
    endpoint = f"{request.method} {request.path.rstrip('/')}"[:300]
    content = (request.META.get("QUERY_STRING", ""), request.headers.get("If-Match", ""), request.data)
    use = KeyUse(request.user, endpoint, key, digest_of(*content))
    try:
        with transaction.atomic():
            if (answer := use.answer()) is not None:
                return _replay(answer)
            use.claim()
            response = act()
            use.record(
                status=response.status_code,
                headers={name: response[name] for name in _HEADERS if name in response},
                body=JsonRenderer().render(response.data).decode(),
            )
            return response
    except IntegrityError as error:
        if not use.was_claimed(error) or (answer := use.answer()) is None:
            raise
        return _replay(answer)


def delete_expired() -> None:
    """Delete records older than `KEPT_FOR`."""
    IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()


def _record(user: Any, endpoint: str, key: str) -> IdempotencyRecord | None:
    return IdempotencyRecord.objects.filter(user=user, endpoint=endpoint, key=key).first()


def _decrypt(record: IdempotencyRecord) -> dict[str, Any]:
    """Decrypt the record. Returns an empty dict if its secret key is no longer configured."""
    try:
        answer: dict[str, Any] = json.loads(decrypt(record.sealed, purpose=PURPOSE))
    except Unreadable:
        return {}
    return answer


def _replay(answer: dict[str, Any]) -> Response:
    body = json.loads(answer["body"]) if answer["body"] else None
    return Response(body, status=answer["status"], headers={**answer["headers"], REPLAYED: "true"})
