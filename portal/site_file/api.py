"""REST API of the site file, for administrators and, read-only, for auditors."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.scopes import Scope
from portal.people.accounts.policies import require_administrator
from portal.site_file import applying, exporting
from portal.site_file.planning import Action, Step

SCOPES = {"GET": Scope.SITE_READ, "*": Scope.SITE_WRITE}


class SiteSerializer(serializers.Serializer[Any]):
    """The site as a document (`docs/site.schema.json`), and as the text of a file."""

    site = serializers.DictField(help_text="The site, as `docs/site.schema.json` describes it.")
    yaml = serializers.CharField(help_text="The site file as YAML.")


class SiteFileSerializer(StrictSerializer):
    """A site file."""

    yaml = serializers.CharField(
        max_length=2_000_000, trim_whitespace=False, help_text="The site file as YAML."
    )
    prune = serializers.BooleanField(
        default=False, help_text="Whether to delete entries that a section does not list."
    )

    examples = {"yaml": "berth: 1\nteams:\n  vision:\n    name: Vision\n"}


class StepSerializer(serializers.Serializer[Step]):
    """One change."""

    section = serializers.CharField(help_text="Section of the site file.")
    name = serializers.CharField()
    act = serializers.ChoiceField(
        [act.value for act in Action],
        help_text="Action on the entry; `by_hand` if only a person can do it.",
    )
    words = serializers.ListField(
        child=serializers.CharField(), source="change_texts", help_text="Changes, field by field."
    )


class PlanSerializer(serializers.Serializer[Any]):
    """The planned or applied changes."""

    same = serializers.BooleanField(help_text="Whether the site already matches the file.")
    steps = StepSerializer(many=True, help_text="Planned changes, in order.")


def _answer(steps: list[Step]) -> Response:
    return Response(PlanSerializer({"same": not steps, "steps": steps}).data)


class Site(ApiView):
    tag = "site"
    operation_ids = {"get": "exportSite"}
    scopes = SCOPES

    @operation(
        "Export the site",
        description="For administrators and auditors. Secrets, users and workspaces are not included.",
        responses={200: SiteSerializer},
    )
    def get(self, request: UserRequest) -> Response:
        site = exporting.export(actor=request.user)
        return Response({"site": site, "yaml": exporting.as_yaml(site)})


class SitePlan(ApiView):
    tag = "site"
    operation_ids = {"post": "planSite"}
    scopes = SCOPES

    @operation(
        "Preview a site file",
        description="For administrators. Changes nothing.",
        request=SiteFileSerializer,
        responses={200: PlanSerializer},
        errors=[400, 413, 415],
    )
    def post(self, request: UserRequest) -> Response:
        require_administrator(request.user)
        body = body_of(request, SiteFileSerializer)
        return _answer(applying.compare(actor=request.user, text=body["yaml"], prune=body["prune"]))


class SiteApply(ApiView):
    tag = "site"
    operation_ids = {"post": "applySite"}
    scopes = SCOPES

    @operation(
        "Apply a site file",
        description="For administrators. Applies all changes, or none if one is refused.",
        request=SiteFileSerializer,
        responses={200: PlanSerializer},
        errors=[400, 413, 415],
    )
    def post(self, request: UserRequest) -> Response:
        require_administrator(request.user)
        body = body_of(request, SiteFileSerializer)
        return _answer(applying.apply(actor=request.user, text=body["yaml"], prune=body["prune"]))


urlpatterns = [
    *routes("site", Site, "site"),
    *routes("site/plan", SitePlan, "site-plan"),
    *routes("site/apply", SiteApply, "site-apply"),
]
