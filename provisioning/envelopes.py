"""Envelopes of messages in the broker's queues: parsed strictly, because nodes write there, too.

Kombu and Celery trust the envelope: one that is malformed ends a worker, and fields that no signature covers
would be used. Here everything is checked first, and only the fields that Berth uses are kept.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

MAX_BYTES = 4 << 20
"""Longest envelope. The longest messages are inventories, with about 100 KiB."""
_YEARS = range(2000, 2200)

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]


class Undecodable(Exception):
    """An envelope that is malformed. The text says where; it contains nothing of the envelope."""


class _Delivery(Struct):
    redelivered: bool = False


class _Properties(Struct):
    body_encoding: Literal["base64"]
    delivery_info: _Delivery


class _Headers(Struct):
    task: Name
    id: Name
    eta: str | None = None
    expires: str | None = None
    group: Name | None = None
    berth_stamp: Any = None
    compression: None = None


class _Envelope(Struct):
    body: str
    content_type: Literal["application/json"] = field(name="content-type")
    content_encoding: Literal["utf-8"] = field(name="content-encoding")
    headers: _Headers
    properties: _Properties


_decoder = msgspec.json.Decoder(_Envelope)


def parse(raw: bytes, *, queue: str) -> dict[str, Any]:
    """Return an envelope for kombu, as one received from `queue`. Raises `Undecodable`.

    The envelope gets a new delivery tag, because a sender could repeat another message's tag.
    """
    if len(raw) > MAX_BYTES:
        raise Undecodable(f"longer than {MAX_BYTES >> 20} MiB")
    try:
        envelope = _decoder.decode(raw)
        base64.b64decode(envelope.body, validate=True)
        for moment in (envelope.headers.eta, envelope.headers.expires):
            if moment is not None:
                _check_moment(moment)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise Undecodable(str(error)) from None
    headers = envelope.headers
    return {
        "body": envelope.body,
        "content-type": envelope.content_type,
        "content-encoding": envelope.content_encoding,
        "headers": {
            "lang": "py",
            "task": headers.task,
            "id": headers.id,
            "eta": headers.eta,
            "expires": headers.expires,
            "group": headers.group,
            "berth_stamp": headers.berth_stamp,
        },
        "properties": {
            "correlation_id": headers.id,
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {
                "exchange": queue,
                "routing_key": queue,
                "redelivered": envelope.properties.delivery_info.redelivered,
            },
            "body_encoding": envelope.properties.body_encoding,
            "priority": 0,
        },
    }


def _check_moment(text: str) -> None:
    """Raise `ValueError` unless `text` is a time with an offset that Celery can calculate with."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("not a time") from None
    if moment.tzinfo is None or moment.year not in _YEARS:
        raise ValueError("not a time of this century with an offset")
