"""REST API of previews of catalog entries, saved or drafts."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from portal.catalog import entries, rules, selectors
from portal.catalog.models import Flavor, Template
from portal.catalog.serializers import (
    FlavorCreateSerializer,
    TemplateCreateSerializer,
    WarningSerializer,
    flavor_errors,
)
from portal.common.api import (
    ApiView,
    StrictSerializer,
    UserRequest,
    body_of,
    not_found_as_invalid,
    operation,
    routes,
)
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.common.scopes import Scope
from portal.people.accounts.selectors import team_by_slug
from portal.scheduling.fits import PoolFit
from portal.scheduling.serializers import VerdictSerializer, verdict_data
from portal.web.catalog.previews import Preview, preview


class PoolFitSerializer(serializers.Serializer[Any]):
    """Whether and where the flavor fits in one pool."""

    pool = serializers.CharField(source="pool.slug")
    simulated = serializers.BooleanField(source="pool.simulated")
    nodes_now = serializers.IntegerField(help_text="Number of nodes with room for a part of it now.")
    nodes_ever = serializers.IntegerField(help_text="Number of nodes with room for a part of it when empty.")
    devices_now = serializers.IntegerField(
        help_text=(
            "Number of devices of these nodes with room for a part of it now. For a MIG profile, number of "
            "instances."
        )
    )
    devices_ever = serializers.IntegerField(
        help_text="Number of devices with room for a part of it when empty."
    )
    starts_now = serializers.IntegerField(
        help_text="Number of workspaces that could be placed now, up to 50. 50 means 50 or more."
    )
    refusal = serializers.SerializerMethodField(help_text="Why the driver can never run it; empty if it can.")

    def get_refusal(self, fit: PoolFit) -> str:
        return message_of(fit.refusal) if fit.refusal is not None else ""


class CatalogPreviewRequestSerializer(StrictSerializer):
    """A flavor or a draft of one, and optionally a template or a draft of one."""

    team = serializers.CharField(
        max_length=40, required=False, help_text="Slug of the team. Requires a template."
    )
    template = serializers.CharField(max_length=81, required=False)
    flavor = serializers.CharField(max_length=60, required=False)
    template_draft = TemplateCreateSerializer(
        required=False, help_text="A template to preview without saving it."
    )
    flavor_draft = FlavorCreateSerializer(required=False, help_text="A flavor to preview without saving it.")


class CatalogPreviewSerializer(serializers.Serializer[Preview]):
    """The pools that a flavor fits, its price, and the verdict for a team."""

    message = serializers.CharField(source="sentence")
    pools = PoolFitSerializer(
        many=True, source="fits.pools", help_text="Where it fits: one entry for each pool, with reasons."
    )
    gpu_hours_per_hour_min = serializers.FloatField(help_text="Minimum GPU-hours that an hour costs.")
    gpu_hours_per_hour_max = serializers.FloatField(help_text="Maximum GPU-hours that an hour costs.")
    verdict = VerdictSerializer(
        allow_null=True, help_text="Admission verdict for a request now; null without a team."
    )
    network = serializers.CharField(
        help_text="Maximum network access, by template and team; empty if they do not restrict it."
    )
    warnings = serializers.SerializerMethodField(help_text="Warnings that do not block its use.")

    def to_representation(self, preview: Preview) -> dict[str, Any]:
        sentence, verdict = preview.sentence, preview.verdict
        return {
            "message": sentence,
            "pools": PoolFitSerializer(preview.fits.pools, many=True).data,
            "gpu_hours_per_hour_min": preview.price[0],
            "gpu_hours_per_hour_max": preview.price[1],
            "verdict": VerdictSerializer(verdict_data(verdict)).data if verdict is not None else None,
            "network": preview.network,
            "warnings": self.get_warnings(preview),
        }

    @extend_schema_field(WarningSerializer(many=True))
    def get_warnings(self, _found: Preview) -> list[dict[str, Any]]:
        template = self.context.get("template")
        warnings = rules.template_warnings(template) if template is not None else []
        warnings += selectors.deprecations(*self.context.get("entries", ()))
        return [WarningSerializer(warning).data for warning in warnings]


class CatalogPreview(ApiView):
    """Preview of catalog entries. Nothing is stored."""

    tag = "catalog"
    operation_ids = {"post": "previewCatalogEntries"}
    scopes = {"*": Scope.CATALOG_READ}

    @operation(
        "Preview a template and a flavor",
        description=(
            "Takes slugs of saved templates and flavors, or drafts with the same fields as in POST. Drafts "
            "require permission to create them."
        ),
        request=CatalogPreviewRequestSerializer,
        responses={200: CatalogPreviewSerializer},
        errors=[400, 404, 415],
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, CatalogPreviewRequestSerializer)
        with not_found_as_invalid("team"):
            team = team_by_slug(request.user, body["team"]) if body.get("team") else None
        template = self._template(request, body)
        flavor = self._flavor(request, body)
        preview_ = preview(request.user, flavor, template, team)
        draft = template if "template_draft" in body else None
        entries = [entry for entry in (template, flavor) if entry is not None]
        return Response(
            CatalogPreviewSerializer(preview_, context={"template": draft, "entries": entries}).data
        )

    def _template(self, request: UserRequest, body: dict[str, Any]) -> Template | None:
        if draft := body.get("template_draft"):
            slug = draft.pop("team", None)
            with not_found_as_invalid("template_draft"):
                team = team_by_slug(request.user, slug) if slug else None
            return entries.draft(actor=request.user, model=Template, values=draft, team=team)
        return selectors.template_by_slug(request.user, body["template"]) if "template" in body else None

    def _flavor(self, request: UserRequest, body: dict[str, Any]) -> Flavor:
        if draft := body.get("flavor_draft"):
            with flavor_errors("flavor_draft."):
                return entries.draft(actor=request.user, model=Flavor, values=draft)
        if "flavor" not in body:
            reason = Reason(CommonCode.FIRST_CHOICE_MISSING, {"field": "flavor"})
            raise InvalidInput(reason, errors={"flavor": [reason]})
        return selectors.flavor_by_slug(request.user, body["flavor"])


urlpatterns = routes("catalog/preview", CatalogPreview, "catalog-preview")
