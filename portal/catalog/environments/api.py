"""REST views of software environments, their versions, and their builds with live logs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.catalog.environments import build_log, builds, policies, previews, selectors, services
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import (
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    VersionState,
)
from portal.catalog.environments.serializers import (
    BuildCreateSerializer,
    BuildSerializer,
    EnvironmentChangeSerializer,
    EnvironmentCreateSerializer,
    EnvironmentSerializer,
    SourcePreviewRequestSerializer,
    SourcePreviewSerializer,
    VersionDetailSerializer,
    VersionSerializer,
)
from portal.common.api import (
    PlainTextRenderer,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    not_found_as_invalid,
    operation,
)
from portal.common.errors import InvalidInput
from portal.common.etags import IF_MATCH, etag_of, expected_versions
from portal.common.events import live, stream
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken, Team, User

SCOPES = {"GET": Scope.ENVIRONMENTS_READ, "*": Scope.ENVIRONMENTS_WRITE}


class EnvironmentFilter(filters.FilterSet):
    search = filters.CharFilter(
        method="filter_words", label="Words to search for in name, slug and description."
    )
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team that owns the environment.")
    kind = filters.ChoiceFilter(choices=Kind.choices, label="Source of the environment.")
    enabled = filters.BooleanFilter(label="Whether the environment can be selected.")
    deprecated = filters.BooleanFilter(label="Whether the environment is deprecated.")

    def filter_words(self, queryset: QuerySet[Environment], _name: str, value: str) -> QuerySet[Environment]:
        return selectors.search(queryset, value)


@documented(
    list="List software environments",
    of="Lists environments for everyone and those of your teams. Operators and auditors see all.",
)
class EnvironmentViewSet(ReadViewSet):
    observed = frozenset({"current"})
    tag = "environments"
    operation_ids = {
        "list": "listEnvironments",
        "create": "createEnvironment",
        "retrieve": "getEnvironment",
        "partial_update": "updateEnvironment",
        "destroy": "deleteEnvironment",
        "preview": "previewEnvironmentVersion",
    }
    queryset = Environment.objects.none()
    serializer_class = EnvironmentSerializer
    filterset_class = EnvironmentFilter
    scopes = SCOPES
    ordering = ("position", "slug")
    missing = EnvironmentCode.NO_SUCH_ENVIRONMENT
    lookup_field = "slug"
    lookup_value_converter = "slug"

    def get_queryset(self) -> QuerySet[Environment]:
        return selectors.environments_for(self.request.user)

    def answer(self, row: Environment, *, status: int = 200, **headers: str) -> Response:
        return super().answer(row, status=status, **{"ETag": etag_of(row), **headers})

    @operation(
        "Read a software environment",
        responses={200: EnvironmentSerializer},
        errors=[404],
    )
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.answer(self.get_object())

    @operation(
        "Create a software environment",
        idempotent=True,
        description=(
            "Owners create environments for their team, operators for everyone. The first version is built "
            "immediately unless `build` is false."
        ),
        request=EnvironmentCreateSerializer,
        responses={201: EnvironmentSerializer},
        retry_after_s=10,
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, EnvironmentCreateSerializer)
        team = team_named(request.user, body.pop("team"))
        environment = services.create(actor=request.user, team=team, **body)
        self.kwargs["slug"] = environment.slug
        location = reverse("api:environment-detail", args=[environment.slug])
        return self.answer(self.get_object(), status=201, Location=location)

    @operation(
        "Change a software environment",
        description="Omitted fields stay unchanged. To change the packages, create a build.",
        request=EnvironmentChangeSerializer,
        responses={200: EnvironmentSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, slug: str) -> Response:
        body = body_of(request, EnvironmentChangeSerializer)
        if "successor" in body:
            body["successor"] = body["successor"] or ""
        services.change(
            actor=request.user, environment=self.get_object(), expected=expected_versions(request), **body
        )
        return self.answer(self.get_object())

    @operation(
        "Delete a software environment",
        description="Denied while a workspace or template uses it. The error lists them.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, slug: str) -> Response:
        services.delete(
            actor=request.user, environment=self.get_object(), expected=expected_versions(request)
        )
        return Response(status=204)

    @operation(
        "Preview a new version",
        description=(
            "For managers of the environment. Compares the source with the current version and lists what "
            "uses the environment. Saves nothing."
        ),
        request=SourcePreviewRequestSerializer,
        responses={200: SourcePreviewSerializer},
        errors=[400, 404, 409, 415],
    )
    @action(detail=True, methods=["post"])
    def preview(self, request: UserRequest, slug: str) -> Response:
        environment = self.get_object()
        policies.require_manage(request.user, environment.team)
        body = body_of(request, SourcePreviewRequestSerializer)
        preview = previews.preview(actor=request.user, environment=environment, **body)
        return Response(SourcePreviewSerializer(preview).data)


def team_named(actor: User, slug: str | None) -> Team | None:
    """Return the team with this slug, or None. Raises `InvalidInput`."""
    if not slug:
        return None
    with not_found_as_invalid("team"):
        return accounts.team_by_slug(actor, slug)


class _EnvironmentPartViewSet(ReadViewSet):
    """Base of views below an environment that the actor may see."""

    tag = "environments"
    scopes = SCOPES

    def environment(self) -> Environment:
        return selectors.environment_by_slug(self.request.user, self.kwargs["slug"])


class VersionFilter(filters.FilterSet):
    state = filters.ChoiceFilter(choices=VersionState.choices, label="Only those in this state.")


@documented(list="List the versions of a software environment", of="Newest first.", errors=[404])
class VersionViewSet(_EnvironmentPartViewSet):
    operation_ids = {
        "list": "listEnvironmentVersions",
        "retrieve": "getEnvironmentVersion",
        "restore": "restoreEnvironmentVersion",
    }
    queryset = EnvironmentVersion.objects.none()
    serializer_class = VersionSerializer
    filterset_class = VersionFilter
    ordering = ("-number", "id")
    missing = EnvironmentCode.NO_SUCH_VERSION
    lookup_field = lookup_url_kwarg = "number"
    lookup_value_converter = "int"

    def get_queryset(self) -> QuerySet[EnvironmentVersion]:
        return selectors.versions_of(self.environment())

    @operation(
        "Read a version of a software environment",
        description="Includes source, lock file and packages.",
        responses={200: VersionDetailSerializer},
        errors=[404],
    )
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        version = selectors.version_by_number(self.environment(), self.kwargs["number"])
        return Response(VersionDetailSerializer(version).data)

    @operation(
        "Make a version current",
        description="For managers of the environment. New workspaces use it.",
        request=None,
        responses={200: EnvironmentSerializer},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"])
    def restore(self, request: UserRequest, slug: str, number: int) -> Response:
        services.restore(
            actor=request.user,
            environment=self.environment(),
            number=number,
            expected=expected_versions(request),
        )
        environment = self.environment()
        return Response(EnvironmentSerializer(environment).data, headers={"ETag": etag_of(environment)})


class BuildFilter(filters.FilterSet):
    state = filters.ChoiceFilter(choices=BuildState.choices, label="Only those in this state.")
    version = filters.NumberFilter(field_name="version__number", label="Number of the version.")
    node = filters.CharFilter(field_name="node__name", label="Name of the node.")


@documented(
    list="List the builds of a software environment",
    of="Newest first. A build is an attempt to build a version on a node.",
    retrieve="Read a build of a software environment",
    errors=[404],
)
class BuildViewSet(_EnvironmentPartViewSet):
    operation_ids = {
        "list": "listEnvironmentBuilds",
        "create": "buildEnvironment",
        "retrieve": "getEnvironmentBuild",
        "cancel": "cancelEnvironmentBuild",
        "log": "getEnvironmentBuildLog",
        "stream": "followEnvironmentBuild",
    }
    queryset = EnvironmentBuild.objects.none()
    serializer_class = BuildSerializer
    filterset_class = BuildFilter
    ordering = ("-created_at", "-id")
    missing = EnvironmentCode.NO_SUCH_BUILD
    lookup_field = "pk"
    lookup_url_kwarg = "build_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[EnvironmentBuild]:
        return selectors.builds_of(self.environment())

    @operation(
        "Build a software environment",
        idempotent=True,
        description=(
            "With `source`, builds a new version. Without it, builds the newest version, or a new version "
            "of the same source if that one is ready. If the version is already being built, returns that "
            "version. Its builds appear once a node is available."
        ),
        request=BuildCreateSerializer,
        responses={202: VersionSerializer},
        retry_after_s=10,
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def create(self, request: UserRequest, slug: str) -> Response:
        body = body_of(request, BuildCreateSerializer)
        environment = self.environment()
        if "source" in body:
            version = services.change_source(
                actor=request.user, environment=environment, expected=expected_versions(request), **body
            )
        else:
            version = services.rebuild(actor=request.user, environment=environment)
        location = reverse("api:environment-version-detail", args=[slug, version.number])
        return Response(VersionSerializer(version).data, status=202, headers={"Location": location})

    @operation(
        "Cancel a build",
        description="For managers of the environment. Nothing stays on the node.",
        request=None,
        responses={200: BuildSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, slug: str, build_id: UUID) -> Response:
        build = self.get_object()
        builds.cancel(actor=request.user, build_id=build.pk)
        return self.answer(self.get_object())

    @operation(
        "Read the log of a build",
        description="The end of the log, up to 1 MiB.",
        responses={(200, "text/plain"): OpenApiTypes.STR},
        errors=[404],
    )
    @action(detail=True, renderer_classes=[PlainTextRenderer, JSONRenderer])
    def log(self, request: UserRequest, slug: str, build_id: UUID) -> Response:
        return Response(build_log.text_of(self.get_object()))

    @operation(
        "Follow a build",
        description=(
            "Server-sent events: the build, with the new output in `log`. The stream ends with the build, "
            "or after some minutes: reconnect with `Last-Event-ID`."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR},
        errors=[400, 404, 429],
    )
    @action(detail=True, renderer_classes=[stream.EventStreamRenderer, JSONRenderer])
    def stream(self, request: UserRequest, slug: str, build_id: UUID) -> Any:
        build = self.get_object()
        user = request.user
        after = stream.last_event_id(request.headers.get("Last-Event-ID", ""))
        if after is None:
            raise InvalidInput(Reason(CommonCode.LAST_EVENT_ID_INVALID))
        token = request.auth if isinstance(request.auth, ApiToken) else None

        def may_read() -> bool:
            # The stream ends once the user loses the permission.
            return accounts.still_valid(user, token)

        read = build_log.follow(user, slug, build.pk, may_read)
        return stream.response(live.build_channel(build_id), read, after=after, user_id=user.pk)


router = Router()
router.register("environments", EnvironmentViewSet, basename="environment")
router.register("environments/<slug:slug>/versions", VersionViewSet, basename="environment-version")
router.register("environments/<slug:slug>/builds", BuildViewSet, basename="environment-build")
urlpatterns = router.urls
