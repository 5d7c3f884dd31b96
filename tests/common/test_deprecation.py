"""An operation that is to go says so, in the document for programs and with each answer."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from django.test import RequestFactory
from drf_spectacular.generators import SchemaGenerator
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, operation, routes
from portal.common.deprecation import Deprecated
from tests.api.conftest import document


class OldSerializer(serializers.Serializer[Any]):
    old = serializers.BooleanField()


class OldView(ApiView):
    authentication_classes = permission_classes = ()

    @operation(
        "Read what is old",
        description="`getNew` takes its place.",
        responses={200: OldSerializer},
        deprecated=Deprecated(since=date(2026, 1, 31), until=date(2026, 12, 31)),
    )
    def get(self, request: Any) -> Response:
        return Response({"old": True})


@pytest.mark.django_db
def test_each_answer_says_since_when_and_until_when() -> None:
    answer = OldView.as_view()(RequestFactory().get("/api/v1/old"))
    assert answer["Deprecation"] == "@1769817600"
    assert answer["Sunset"] == "Thu, 31 Dec 2026 00:00:00 GMT"


def test_the_document_says_it_too() -> None:
    from portal.web.openapi.operations import NAMES

    generator = SchemaGenerator(patterns=routes("api/v1/version", OldView, "old"))
    assert ("GET", "version") in NAMES  # the name is borrowed
    found = generator.get_schema(public=True)["paths"]["/api/v1/version"]["get"]
    assert found["deprecated"] is True
    assert set(found["responses"]["200"]["headers"]) >= {"Deprecation", "Sunset"}


def test_no_operation_is_marked_without_saying_when() -> None:
    for path, methods in document()["paths"].items():
        for method, each in methods.items():
            if each.get("deprecated"):
                heads = each["responses"][min(each["responses"])]["headers"]
                assert {"Deprecation", "Sunset"} <= heads.keys(), (method, path)
