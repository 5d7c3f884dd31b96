"""REST views of templates and flavors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.catalog import entries, selectors
from portal.catalog.models import Flavor, Template
from portal.catalog.policies import require_manage
from portal.catalog.serializers import (
    FlavorChangeSerializer,
    FlavorCreateSerializer,
    FlavorSerializer,
    TemplateChangeSerializer,
    TemplateCreateSerializer,
    TemplateSerializer,
    TemplateWrittenSerializer,
    flavor_errors,
    ids_with_visible_command,
)
from portal.common import etags
from portal.common.api import (
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    not_found_as_invalid,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.history import selectors as history
from portal.common.history.serializers import RevisionSerializer
from portal.common.scopes import Scope
from portal.people.accounts.selectors import own_teams, team_by_slug

SCOPES = {"GET": Scope.CATALOG_READ, "*": Scope.CATALOG_WRITE}
NUMBER = OpenApiParameter("number", int, OpenApiParameter.PATH, description="Number of the version, from 1.")
VERSIONS_SHOWN = 50


class TemplateFilter(filters.FilterSet):
    q = filters.CharFilter(
        method="filter_words", label="Words to search for in name, slug, description and program."
    )
    team = filters.CharFilter(
        field_name="team__slug", label="Only templates that belong to this team, by slug."
    )
    enabled = filters.BooleanFilter(label="`false` lists disabled ones, for users who can edit them.")
    deprecated = filters.BooleanFilter(label="Whether it is deprecated.")

    def filter_words(self, queryset: QuerySet[Any], _: str, value: str) -> QuerySet[Any]:
        return selectors.search(queryset, value)


class FlavorFilter(filters.FilterSet):
    q = filters.CharFilter(
        method="filter_words", label="Words to search for in name, slug, description and model."
    )
    pool = filters.CharFilter(field_name="pool__slug", label="Only flavors that are limited to this pool.")
    enabled = filters.BooleanFilter(label="`false` lists disabled ones, for users who can edit them.")
    deprecated = filters.BooleanFilter(label="Whether it is deprecated.")

    def filter_words(self, queryset: QuerySet[Any], _: str, value: str) -> QuerySet[Any]:
        return selectors.search(queryset, value)


class EntryViewSet(TaggedViewSet, ReadViewSet, ABC):
    """Common base of templates and flavors."""

    tag = "catalog"
    scopes = SCOPES
    ordering = ("position", "slug", "id")
    lookup_field = "slug"
    lookup_value_converter = "slug"
    change_serializer: ClassVar[Any]

    @abstractmethod
    def _visible_entries(self) -> QuerySet[Any]:
        """Return all entries visible to the actor, enabled or not."""

    def get_queryset(self) -> QuerySet[Any]:
        entries = self._visible_entries()
        if self.action == "list" and "enabled" not in self.request.query_params:
            return entries.filter(enabled=True)
        return entries

    def get_serializer_context(self) -> dict[str, Any]:
        context = dict(super().get_serializer_context())
        if not self.request or not self.request.user.is_authenticated:
            return context
        sees_all = self.request.user.sees_all
        own = None if sees_all else frozenset(own_teams(self.request.user).values_list("pk", flat=True))
        return {**context, "own_teams": own}

    def _change(self, request: UserRequest) -> Response:
        """Handle PATCH."""
        entry = self.get_object()
        require_manage(request.user, entry)
        body = body_of(request, self.change_serializer, partial=True)
        entry = entries.change(
            actor=request.user, entry=entry, values=body, expected=etags.expected_versions(request)
        )
        return self.answer(entry)

    def _delete(self, request: UserRequest) -> Response:
        """Handle DELETE."""
        entries.delete(actor=request.user, entry=self.get_object(), expected=etags.expected_versions(request))
        return Response(status=204)

    def _history(self, request: UserRequest) -> Response:
        """Return the newest versions, for users who manage the entry or see all."""
        entry = self.get_object()
        if not request.user.sees_all:
            require_manage(request.user, entry)
        rows = list(history.revisions(*selectors.revision_subject(entry))[: VERSIONS_SHOWN + 1])
        shown = history.revisions_with_changes(rows)[:VERSIONS_SHOWN]
        for row, changes in shown:
            row.changes = changes  # type: ignore[attr-defined]
        return Response(RevisionSerializer([row for row, _ in shown], many=True).data)

    def _restore(self, request: UserRequest, number: int) -> Response:
        """Restore the version `number`."""
        entry = entries.restore(
            actor=request.user,
            entry=self.get_object(),
            number=number,
            expected=etags.expected_versions(request),
        )
        return self.answer(entry)


@documented(
    list="List templates",
    of="Lists those that your teams can use. Operators and auditors see all.",
    retrieve="Read a template",
)
class TemplateViewSet(EntryViewSet):
    observed = frozenset({"available", "next_action", "reason"})
    operation_ids = {
        "list": "listTemplates",
        "create": "createTemplate",
        "retrieve": "getTemplate",
        "partial_update": "updateTemplate",
        "destroy": "deleteTemplate",
        "versions": "listTemplateVersions",
        "restore": "restoreTemplateVersion",
    }
    queryset = Template.objects.none()
    serializer_class = TemplateSerializer
    change_serializer = TemplateChangeSerializer
    filterset_class = TemplateFilter

    def get_serializer_class(self) -> Any:
        written = self.action in ("create", "partial_update", "restore")
        return TemplateWrittenSerializer if written else TemplateSerializer

    def _visible_entries(self) -> QuerySet[Template]:
        return selectors.templates_for(self.request.user)

    def get_object(self) -> Template:
        return selectors.visible_template(self.request.user, self.kwargs["slug"])

    def get_serializer(self, *args: Any, **kwargs: Any) -> Any:
        serializer = super().get_serializer(*args, **kwargs)
        shown = args[0] if args else []
        rows = shown if kwargs.get("many") else [shown] if isinstance(shown, Template) else []
        ids = ids_with_visible_command(self.request.user, rows) if rows else frozenset()
        context: dict[str, Any] = serializer.context  # type: ignore[assignment]
        context["kept"] = ids
        return serializer

    @operation(
        "Create a template",
        idempotent=True,
        description=(
            "Operators create templates of the site. With `team`, owners can create templates of their "
            "team; the slug of such a template starts with the slug of the team and an underscore."
        ),
        request=TemplateCreateSerializer,
        responses={201: TemplateWrittenSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, TemplateCreateSerializer)
        slug = body.pop("team", None)
        with not_found_as_invalid("team"):
            team = team_by_slug(request.user, slug) if slug else None
        template = entries.create(actor=request.user, model=Template, values=body, team=team)
        return self.answer(
            template, status=201, Location=reverse("api:template-detail", args=[template.slug])
        )

    @operation(
        "Change a template",
        description="Omitted fields stay unchanged. Running workspaces are not affected.",
        request=TemplateChangeSerializer(partial=True),
        responses={200: TemplateWrittenSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str) -> Response:
        return self._change(request)

    @operation(
        "Delete a template",
        description="Denied while workspaces use it. Its slug can then be reused.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        return self._delete(request)

    @operation(
        "List the versions of a template",
        description="For users who can edit the template, operators and auditors. Newest first, up to 50.",
        responses={200: RevisionSerializer(many=True)},
        errors=[404],
    )
    @action(detail=True, url_path="versions", pagination_class=None, filterset_class=None)
    def versions(self, request: UserRequest, slug: str) -> Response:
        return self._history(request)

    @operation(
        "Restore a version of a template",
        idempotent=True,
        description="Creates a new version with the values of the earlier one.",
        request=None,
        responses={200: TemplateWrittenSerializer},
        parameters=[NUMBER, IF_MATCH],
        errors=[400, 404, 409, 412],
    )
    @action(detail=True, methods=["post"], url_path="versions/<int:number>/restore")
    def restore(self, request: UserRequest, slug: str, number: int) -> Response:
        return self._restore(request, number)


@documented(
    list="List flavors",
    of="Lists those that your teams can use. Operators and auditors see all.",
    retrieve="Read a flavor",
)
class FlavorViewSet(EntryViewSet):
    operation_ids = {
        "list": "listFlavors",
        "create": "createFlavor",
        "retrieve": "getFlavor",
        "partial_update": "updateFlavor",
        "destroy": "deleteFlavor",
        "versions": "listFlavorVersions",
        "restore": "restoreFlavorVersion",
    }
    queryset = Flavor.objects.none()
    serializer_class = FlavorSerializer
    change_serializer = FlavorChangeSerializer
    filterset_class = FlavorFilter

    def _visible_entries(self) -> QuerySet[Flavor]:
        return selectors.flavors_for(self.request.user)

    def get_object(self) -> Flavor:
        return selectors.visible_flavor(self.request.user, self.kwargs["slug"])

    @operation(
        "Create a flavor",
        idempotent=True,
        description="For operators.",
        request=FlavorCreateSerializer,
        responses={201: FlavorSerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, FlavorCreateSerializer)
        with flavor_errors():
            flavor = entries.create(actor=request.user, model=Flavor, values=body)
        return self.answer(flavor, status=201, Location=reverse("api:flavor-detail", args=[flavor.slug]))

    @operation(
        "Change a flavor",
        description="For operators. Omitted fields stay unchanged. Existing requests are not changed.",
        request=FlavorChangeSerializer(partial=True),
        responses={200: FlavorSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str) -> Response:
        with flavor_errors():
            return self._change(request)

    @operation(
        "Delete a flavor",
        description="For operators. Denied while workspaces use it. Its slug can then be reused.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        return self._delete(request)

    @operation(
        "List the versions of a flavor",
        description="For operators and auditors. Newest first, up to 50.",
        responses={200: RevisionSerializer(many=True)},
        errors=[404],
    )
    @action(detail=True, url_path="versions", pagination_class=None, filterset_class=None)
    def versions(self, request: UserRequest, slug: str) -> Response:
        return self._history(request)

    @operation(
        "Restore a version of a flavor",
        idempotent=True,
        description="Creates a new version with the values of the earlier one.",
        request=None,
        responses={200: FlavorSerializer},
        parameters=[NUMBER, IF_MATCH],
        errors=[400, 404, 409, 412],
    )
    @action(detail=True, methods=["post"], url_path="versions/<int:number>/restore")
    def restore(self, request: UserRequest, slug: str, number: int) -> Response:
        return self._restore(request, number)


router = Router()
router.register("templates", TemplateViewSet)
router.register("flavors", FlavorViewSet)
urlpatterns = router.urls
