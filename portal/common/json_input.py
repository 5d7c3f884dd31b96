"""Parses external JSON. Accepts only values that the portal and its databases can store."""

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
    """Malformed or unacceptable JSON. The message is in English, for logs and API clients."""


def parse_json(raw: bytes | str, *, strict: bool = True) -> Any:
    """Parse JSON. Raises `InvalidJson`.

    Rejects more than `MAX_DEPTH` levels, integers beyond 64 bits and non-finite numbers. With `strict`, also
    rejects strings with NUL characters or lone surrogates, which databases do not accept.
    """
    try:
        value = json.loads(raw, parse_constant=_constant, parse_int=_parse_integer, parse_float=_parse_float)
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("it is nested too deeply") from None
    except ValueError as error:
        raise InvalidJson(f"it is not valid JSON ({error})"[:200]) from error
    _check(value, strict)
    return value


def _constant(name: str) -> None:
    raise InvalidJson(f"{name} is not valid JSON")


def _parse_integer(digits: str) -> int:
    # Checked first: parsing is slow, and Python raises a different error for very long numbers.
    if len(digits) > 20 or abs(number := int(digits)) > LARGEST_WHOLE:
        raise InvalidJson("a number has more than 64 bits")
    return number


def _parse_float(digits: str) -> float:
    if len(digits) > 400 or not math.isfinite(number := float(digits)):
        raise InvalidJson("a number is too large")
    return number


def _check(value: Any, strict: bool) -> None:
    """Check all values level by level, without recursion."""
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
                raise InvalidJson("a string contains a NUL character or a lone surrogate")
        if not inner:
            return
        level = inner
    raise InvalidJson("it is nested too deeply")


def storable(text: str) -> bool:
    """Return whether databases accept the text: no NUL characters and no lone surrogates."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text))


class JsonParser(parsers.BaseParser):
    """DRF parser for JSON request bodies."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise RequestDataTooBig(f"more than {limit} bytes")
        try:
            return parse_json(raw)
        except InvalidJson as error:
            raise exceptions.ParseError(_("Invalid request body: %(why)s.") % {"why": error}) from error
