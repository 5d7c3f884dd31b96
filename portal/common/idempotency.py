"""Requests that may be repeated without being carried out twice (`Idempotency-Key`).

A key belongs to its user and to one endpoint: an address of REST (`answer_once`), or an act of a service
(`KeyUse`). The first answer is recorded for a day in the transaction that did its work, so a process that is
killed leaves both or neither. Refusals are not recorded: the same key can be used again once the cause is
fixed.
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
from portal.common.errors import InvalidInput, StateConflict
from portal.common.json_output import JsonRenderer
from portal.common.models import IdempotencyRecord
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.sealed_texts import SealedColumn, Unreadable, seal, unseal

KEPT_FOR = timedelta(days=1)
HEADER = "Idempotency-Key"
META = "HTTP_IDEMPOTENCY_KEY"
REPLAYED = "Idempotent-Replayed"
PURPOSE = "idempotency-record"
SEALED = SealedColumn(IdempotencyRecord, "sealed", lambda _row: PURPOSE)

PARAMETER = OpenApiParameter(
    HEADER,
    {"type": "string", "pattern": "^[!-~]{1,120}$"},
    OpenApiParameter.HEADER,
    description=(
        "Any text of your choice, new for each new request. The same request with the same key within a day "
        "is answered as the first one was, with `Idempotent-Replayed: true`, and changes nothing again."
    ),
)
_KEY = re.compile(r"[\x21-\x7e]{1,120}")
_HEADERS = ("Location", "ETag", "Cache-Control", "Retry-After")


def key_of(request: Request) -> str:
    """The key of a request, or an empty string. Raises `InvalidInput`."""
    key: str | None = request.META.get(META)
    if key is None:
        return ""
    if not _KEY.fullmatch(key):
        code = CommonCode.IDEMPOTENCY_KEY_INVALID
        raise InvalidInput(Reason(code), code=code)
    return key


def require_no_key(request: Request) -> None:
    """Refuse a key where nothing would come of it. Raises `InvalidInput`."""
    if META in request.META:
        code = CommonCode.IDEMPOTENCY_KEY_NOT_TAKEN
        raise InvalidInput(Reason(code), code=code)


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A request of `user` to `endpoint` with `key`. `digest` identifies the request (`digest_of`)."""

    user: Any
    endpoint: str
    key: str
    digest: str

    def answer(self) -> dict[str, Any] | None:
        """Return the recorded answer to this request, or None for the first one.

        Raises `StateConflict` where the key came with another request.
        """
        record = _record(self.user, self.endpoint, self.key)
        if record is None:
            return None
        answer = _opened(record)
        if answer.get("asked") != self.digest:
            code = CommonCode.IDEMPOTENCY_KEY_REUSED
            raise StateConflict(Reason(code), code=code)
        return answer

    def claim(self) -> None:
        """Take the key, in the transaction that does the work.

        Waits for another request that has taken it at this moment, and raises `IntegrityError` if that one
        succeeds (`was_claimed`): `answer` has its answer then.
        """
        IdempotencyRecord.objects.create(user=self.user, endpoint=self.endpoint, key=self.key)

    @staticmethod
    def was_claimed(error: IntegrityError) -> bool:
        """Return whether `error` was raised by `claim`."""
        return violates(error, IdempotencyRecord, "idempotency_record_unique")

    def record(self, **answer: Any) -> None:
        """Keep the answer, in the transaction that has claimed the key."""
        sealed = seal(json.dumps({"asked": self.digest, **answer}), purpose=PURPOSE)
        rows = IdempotencyRecord.objects.filter(user=self.user, endpoint=self.endpoint, key=self.key)
        rows.update(sealed=sealed)


def recorded(*, user: Any, endpoint: str, key: str) -> dict[str, Any]:
    """Return the answer that the user's key has at this endpoint, whatever the request; empty without one."""
    record = _record(user, endpoint, key)
    return {} if record is None else _opened(record)


def digest_of(*parts: Any) -> str:
    """Return what identifies a request: its key is refused with other parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def answer_once(request: Request, act: Callable[[], Response]) -> Response:
    """Return what `act` answers, or what it answered when this request first came with its key.

    Two at the same moment: the second waits for the first, and gets its answer. Raises what `act` raises, and
    `StateConflict` where the key came with another request.
    """
    key = key_of(request)
    if not key:
        return act()
    endpoint = f"{request.method} {request.path.rstrip('/')}"[:300]
    asked = (request.META.get("QUERY_STRING", ""), request.headers.get("If-Match", ""), request.data)
    use = KeyUse(request.user, endpoint, key, digest_of(*asked))
    try:
        with transaction.atomic():
            if (answer := use.answer()) is not None:
                return _replayed(answer)
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
        return _replayed(answer)


def delete_expired() -> None:
    """Delete the records that are older than `KEPT_FOR`."""
    IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()


def _record(user: Any, endpoint: str, key: str) -> IdempotencyRecord | None:
    return IdempotencyRecord.objects.filter(user=user, endpoint=endpoint, key=key).first()


def _opened(record: IdempotencyRecord) -> dict[str, Any]:
    """Return what the record holds; nothing where its secret key is not known any more."""
    try:
        answer: dict[str, Any] = json.loads(unseal(record.sealed, purpose=PURPOSE))
    except Unreadable:
        return {}
    return answer


def _replayed(answer: dict[str, Any]) -> Response:
    body = json.loads(answer["body"]) if answer["body"] else None
    return Response(body, status=answer["status"], headers={**answer["headers"], REPLAYED: "true"})
