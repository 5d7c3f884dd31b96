"""JSON from outside: read once, here, and only what the rest of the portal and its databases can hold."""

from __future__ import annotations

import json
import math
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.utils.translation import gettext as _
from rest_framework import exceptions, parsers

MAX_DEPTH = 64
LARGEST_WHOLE = 2**63 - 1


class InvalidJson(ValueError):
    """It is no JSON, or none that is taken; the text says why, in English, for a log or a program."""


def parse_json(raw: bytes | str, *, strict: bool = True) -> Any:
    """The value. Raises `InvalidJson`.

    Refused are more than `MAX_DEPTH` levels, whole numbers beyond 64 bits, and numbers that are not finite;
    where it is `strict`, also texts that no database takes: with NUL characters or lone surrogates.
    """
    try:
        value = json.loads(raw, parse_constant=_constant, parse_int=_whole, parse_float=_finite)
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidJson(f"it is no JSON ({error})"[:200]) from error
    _check(value, strict)
    return value


def _constant(name: str) -> None:
    raise InvalidJson(f"{name} is no JSON")


def _whole(digits: str) -> int:
    # Longer ones are not even read: that takes long, and Python refuses them in other words.
    if len(digits) > 20 or abs(found := int(digits)) > LARGEST_WHOLE:
        raise InvalidJson("a number has more than 64 bits")
    return found


def _finite(digits: str) -> float:
    if len(digits) > 400 or not math.isfinite(found := float(digits)):
        raise InvalidJson("a number is too large")
    return found


def _check(value: Any, strict: bool) -> None:
    """Look at every level in turn; never recursively."""
    level = [value]
    for _depth in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
                if strict:
                    inner += item.keys()
            elif isinstance(item, list):
                inner += item
            elif strict and isinstance(item, str) and not storable(item):
                raise InvalidJson("a text has a NUL character or half of a surrogate pair")
        if not inner:
            return
        level = inner
    raise InvalidJson("it is nested too deeply")


def storable(text: str) -> bool:
    """Whether every database takes the text: it has no NUL character and no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text))


class JsonParser(parsers.BaseParser):
    """The body of a request to the REST API."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise RequestDataTooBig(f"more than {limit} bytes")
        try:
            return parse_json(raw)
        except InvalidJson as error:
            raise exceptions.ParseError(_("The body cannot be read: %(why)s.") % {"why": error}) from error
