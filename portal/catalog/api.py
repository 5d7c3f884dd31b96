"""Templates and flavors over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework.response import Response

from portal.catalog import selectors
from portal.catalog.models import Flavor, Template
from portal.catalog.serializers import FlavorSerializer, TemplateSerializer
from portal.common.api import ApiView, ListView, UserRequest, operation, routes
from portal.common.errors import NotFound
from portal.common.scopes import Scope

SCOPES = {"*": Scope.CATALOG_READ}


def _offers() -> dict[str, tuple[str, str]]:
    return {offer.template.slug: (offer.reason, offer.next_action) for offer in selectors.template_offers()}


class TemplateList(ListView):
    scopes = SCOPES
    serializer_class = TemplateSerializer
    ordering = ("position", "slug")

    def get_queryset(self) -> QuerySet[Template]:
        return selectors.templates()

    def get_serializer_context(self) -> dict[str, Any]:
        offers = {} if self.documenting() else _offers()
        return {**super().get_serializer_context(), "offers": offers}

    @operation("List templates", responses={200: TemplateSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class TemplateDetail(ApiView):
    scopes = SCOPES

    @operation("Read a template", responses={200: TemplateSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        template = selectors.templates().filter(slug=slug).first()
        if template is None:
            raise NotFound(f"There is no template “{slug}”.", next_action="Look at the list of templates.")
        return Response(TemplateSerializer(template, context={"offers": _offers()}).data)


class FlavorList(ListView):
    scopes = SCOPES
    serializer_class = FlavorSerializer
    ordering = ("position", "slug")

    def get_queryset(self) -> QuerySet[Flavor]:
        return selectors.flavors()

    @operation("List flavors", responses={200: FlavorSerializer(many=True)}, errors=[400])
    def get(self, request: UserRequest) -> Response:
        return self.list(request)


class FlavorDetail(ApiView):
    scopes = SCOPES

    @operation("Read a flavor", responses={200: FlavorSerializer}, errors=[404])
    def get(self, request: UserRequest, slug: str) -> Response:
        flavor = selectors.flavors().filter(slug=slug).first()
        if flavor is None:
            raise NotFound(f"There is no flavor “{slug}”.", next_action="Look at the list of flavors.")
        return Response(FlavorSerializer(flavor).data)


urlpatterns = [
    *routes("templates", TemplateList, "templates"),
    *routes("templates/<slug:slug>", TemplateDetail, "template"),
    *routes("flavors", FlavorList, "flavors"),
    *routes("flavors/<slug:slug>", FlavorDetail, "flavor"),
]
