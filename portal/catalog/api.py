"""Templates and flavors over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from portal.catalog import selectors
from portal.catalog.models import Flavor, Template
from portal.catalog.serializers import FlavorSerializer, TemplateSerializer
from portal.common.api import ReadViewSet, Router, documented
from portal.common.errors import InvalidInput, NotFound
from portal.common.scopes import Scope

SCOPES = {"*": Scope.CATALOG_READ}


@documented(list="List templates", retrieve="Read a template")
class TemplateViewSet(ReadViewSet):
    queryset = Template.objects.none()
    serializer_class = TemplateSerializer
    scopes = SCOPES
    ordering = ("position", "slug")
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Template]:
        return selectors.templates()

    def get_object(self) -> Template:
        try:
            return selectors.template_by_slug(self.kwargs["slug"])
        except InvalidInput as error:
            raise NotFound(error.reason) from error

    def get_serializer_context(self) -> dict[str, Any]:
        offers = {
            offer.template.slug: (offer.reason, offer.next_action) for offer in selectors.template_offers()
        }
        return {**super().get_serializer_context(), "offers": offers}


@documented(list="List flavors", retrieve="Read a flavor")
class FlavorViewSet(ReadViewSet):
    queryset = Flavor.objects.none()
    serializer_class = FlavorSerializer
    scopes = SCOPES
    ordering = ("position", "slug")
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Flavor]:
        return selectors.flavors()

    def get_object(self) -> Flavor:
        try:
            return selectors.flavor_by_slug(self.kwargs["slug"])
        except InvalidInput as error:
            raise NotFound(error.reason) from error


router = Router()
router.register("templates", TemplateViewSet)
router.register("flavors", FlavorViewSet)
urlpatterns = router.urls
