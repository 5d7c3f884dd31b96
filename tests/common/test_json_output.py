"""The JSON renderer's output equals that of DRF."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.utils.functional import lazy
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from rest_framework.renderers import JSONRenderer
from rest_framework.utils.serializer_helpers import ReturnDict, ReturnList

from portal.common.json_output import JsonRenderer
from portal.common.scopes import Scope

AT = dt.datetime(2026, 11, 23, 1, 2, 3, 40, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        "",
        {"a": [1, -2.5, True, None, "ä€😀", '"\\/\b\f\n\r\t\x00\x7f']},
        {"between lines \u2028\u2029": "\u2028"},
        {Scope.ALL: Scope.SCIM, 1: 2},
        AT,
        AT.replace(microsecond=0),
        AT.replace(tzinfo=None),
        AT.astimezone(dt.timezone(dt.timedelta(hours=-3, minutes=-30))),
        AT.date(),
        uuid.UUID(int=1),
        gettext_lazy("Requested"),
        lazy(lambda: 3, int)(),
        mark_safe("<b>"),
        ReturnList([ReturnDict({"a": (1, 2)}, serializer=None)], serializer=None),
        2**70,
        0.1,
        123456789.123,
    ],
)
def test_output_equals_drf_output(value: Any) -> None:
    assert JsonRenderer().render(value) == JSONRenderer().render(value)


@pytest.mark.parametrize("value", [1e16, 1.5e300, 1e-7, 5e-324, Decimal("1.50")])
def test_subclasses_of_numbers_equal_drf_output(value: Any) -> None:
    assert json.loads(JsonRenderer().render([value])) == [value]


def test_nan_and_infinity_are_null() -> None:
    assert JsonRenderer().render([math.nan, math.inf]) == b"[null,null]"


def test_indented_output_equals_drf_output() -> None:
    asked = "application/json; indent=4"
    assert JsonRenderer().render({"a": 1}, asked) == JSONRenderer().render({"a": 1}, asked)


def test_unserializable_value_is_an_error() -> None:
    with pytest.raises(TypeError):
        JsonRenderer().render({"a": object()})
