"""REST API of the version of Berth."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.api import ApiView, IsSignedIn, operation, routes
from provisioning.version import VERSION


class BerthVersionSerializer(serializers.Serializer[Any]):
    """The version of Berth and of its REST API."""

    version = serializers.CharField(help_text="Version of Berth, such as `1.2.0` (Semantic Versioning).")
    api = serializers.CharField(help_text="Version of REST in URLs: `v1`.")


class VersionView(ApiView):
    tag = "site"
    operation_ids = {"get": "getVersion"}
    permission_classes = [IsSignedIn]

    @operation(
        "Read the version of Berth",
        description="For every signed-in user, with any token scope.",
        responses={200: BerthVersionSerializer},
    )
    def get(self, request: Request) -> Response:
        return Response(BerthVersionSerializer({"version": VERSION, "api": "v1"}).data)


urlpatterns = routes("version", VersionView, "version")
