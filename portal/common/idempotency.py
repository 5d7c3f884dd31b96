"""Requests that may be repeated without being carried out twice (`Idempotency-Key`).

A key belongs to its user and to one address. What the first request was answered is kept for a day in the
transaction that did its work, so a process that is killed leaves both or neither. Refusals are not kept: who
has mended the cause may ask again with the same key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.errors import InvalidInput, StateConflict
from portal.common.json_output import JsonRenderer
from portal.common.models import KeptAnswer
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.sealed_texts import SealedColumn, Unreadable, seal, unseal

KEPT_FOR = timedelta(days=1)
HEADER = "Idempotency-Key"
META = "HTTP_IDEMPOTENCY_KEY"
REPLAYED = "Idempotent-Replayed"
PURPOSE = "kept-answer"
SEALED = SealedColumn(KeptAnswer, "sealed", lambda _row: PURPOSE)

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


def answer_once(request: Request, act: Callable[[], Response]) -> Response:
    """What `act` answers, or what it answered when this request first came with its key.

    Two at the same moment: the second waits for the first, and gets its answer. Raises what `act` raises, and
    `StateConflict` where the key came with another request.
    """
    key = key_of(request)
    if not key:
        return act()
    user: Any = request.user
    known = {"user": user, "endpoint": f"{request.method} {request.path.rstrip('/')}"[:300], "key": key}
    digest = _digest_of(request)
    try:
        with transaction.atomic():
            if (found := KeptAnswer.objects.filter(**known).first()) is not None:
                return _again(found, digest)
            kept = KeptAnswer.objects.create(**known)
            response = act()
            kept.sealed = _sealed(digest, response)
            kept.save(update_fields=["sealed"])
            return response
    except IntegrityError:
        found = KeptAnswer.objects.filter(**known).first()
        if found is None:
            raise
        return _again(found, digest)


def forget_old() -> None:
    """Delete the answers that nobody will ask for any more."""
    KeptAnswer.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()


def _digest_of(request: Request) -> str:
    asked = [request.META.get("QUERY_STRING", ""), request.headers.get("If-Match", ""), request.data]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _sealed(digest: str, response: Response) -> str:
    kept = {
        "asked": digest,
        "status": response.status_code,
        "headers": {name: response[name] for name in _HEADERS if name in response},
        "body": JsonRenderer().render(response.data).decode(),
    }
    return seal(json.dumps(kept), purpose=PURPOSE)


def _again(found: KeptAnswer, digest: str) -> Response:
    try:
        kept = json.loads(unseal(found.sealed, purpose=PURPOSE))
    except Unreadable:
        kept = {}
    if kept.get("asked") != digest:
        code = CommonCode.IDEMPOTENCY_KEY_REUSED
        raise StateConflict(Reason(code), code=code)
    body = json.loads(kept["body"]) if kept["body"] else None
    return Response(body, status=kept["status"], headers={**kept["headers"], REPLAYED: "true"})
