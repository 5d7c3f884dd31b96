"""REST API of workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import condition
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from portal.catalog import selectors as catalog
from portal.common import idempotency
from portal.common.api import (
    ListViewSet,
    PlainTextRenderer,
    Router,
    UserRequest,
    body_of,
    documented,
    not_found_as_invalid,
    operation,
)
from portal.common.errors import InvalidInput, NeedsApproval
from portal.common.events import live, stream
from portal.common.pagination import whole_number
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken, Team, User
from portal.workspaces import changes, extending, gpus, log_stream, resizing, rows, selectors, services
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.filters import WorkspaceFilter
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.order_serializers import (
    ExtendSerializer,
    ResizeSerializer,
    WorkspaceChangeSerializer,
    WorkspaceCreateSerializer,
    order_of,
    start_of,
)
from portal.workspaces.rows import WorkspaceRow
from portal.workspaces.serializers import LogSerializer, WorkspaceSerializer
from portal.workspaces.versions import IF_MATCH, etag_of, require_match

T = TypeVar("T")
SCOPES = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}
RETRY_AFTER_S = 2
"""Seconds after which a starting or ending workspace may have progressed."""
TAIL = OpenApiParameter(
    "tail",
    {"type": "integer", "minimum": 1, "maximum": services.MAX_LOG_LINES, "default": 200},
    description="Number of lines.",
)


@documented(
    list="List workspaces",
    of=(
        "Lists your own workspaces and those of teams that you own. Operators see all. Newest first, "
        "unless `sort` is set."
    ),
)
class WorkspaceViewSet(ListViewSet):
    observed = frozenset(
        {
            "activity",
            "admitted_at",
            "checkouts",
            "devices",
            "ends_at",
            "error",
            "gpu_overuse",
            "gpu_released",
            "heartbeat_at",
            "launched_at",
            "nodes",
            "placed_at",
            "queue",
            "ready_at",
            "reason",
            "requested_at",
            "resources",
            "stages",
            "state_since",
            "url",
        }
    )
    tag = "workspaces"
    operation_ids = {
        "list": "listWorkspaces",
        "create": "createWorkspace",
        "retrieve": "getWorkspace",
        "partial_update": "updateWorkspace",
        "destroy": "deleteWorkspace",
        "logs": "getWorkspaceLog",
        "log_stream": "followWorkspaceLog",
        "start": "startWorkspace",
        "stop": "stopWorkspace",
        "extend": "extendWorkspace",
        "resize": "resizeWorkspace",
        "release_gpu": "releaseWorkspaceGpu",
        "attach_gpu": "attachWorkspaceGpu",
    }
    queryset = Workspace.objects.none()
    serializer_class = WorkspaceSerializer
    filterset_class = WorkspaceFilter
    scopes = SCOPES
    ordering = ("-created_at", "-id")
    sorts = {
        "-created_at": ordering,
        "created_at": ("created_at", "id"),
        "name": ("name", "id"),
        "-name": ("-name", "-id"),
    }
    lookup_url_kwarg = "workspace_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Workspace]:
        return selectors.listed_for(self.request.user, deleted="state" in self.request.query_params)

    def paginate_queryset(self, queryset: Any) -> Any:
        page: Any = super().paginate_queryset(queryset.values(*rows.KEYS, "name"))
        return rows.read([row["id"] for row in page])

    def get_object(self) -> WorkspaceRow:
        return rows.read_by_id(self.request.user, self.kwargs["workspace_id"])

    def answer(self, row: WorkspaceRow, *, status: int = 200, **headers: str) -> Response:
        headers |= {"ETag": etag_of(row), "Cache-Control": "private, no-cache"}
        return super().answer(row, status=status, **headers)

    @operation(
        "Create a workspace",
        description=(
            "Starts the workspace if it fits, otherwise queues it. A repeated request with the "
            "same `Idempotency-Key` within 24 hours creates nothing and returns "
            "`Idempotent-Replayed: true`."
        ),
        request=WorkspaceCreateSerializer,
        responses={201: WorkspaceSerializer},
        parameters=[idempotency.PARAMETER],
        retry_after_s=RETRY_AFTER_S,
        errors=[400, 409, 415, 422],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, WorkspaceCreateSerializer)
        order = order_of(request, team_named(request.user, body.get("team", "")), body)
        try:
            creation = services.create(
                actor=request.user, order=order, idempotency_key=idempotency.key_of(request)
            )
        except NeedsApproval as error:
            if ask := error.extra["ask"]:
                ask["start"] = start_of(request)
            raise
        self.kwargs["workspace_id"] = creation.workspace.pk
        headers = {"Location": location_of(creation.workspace)}
        if creation.replayed:
            headers[idempotency.REPLAYED] = "true"
        return self.answer(self.get_object(), status=201, **headers)

    @operation(
        "Read a workspace",
        description="With the `ETag` of the last response in `If-None-Match`, returns 304 if unchanged.",
        responses={200: WorkspaceSerializer, 304: OpenApiResponse(description="Not modified.")},
        parameters=[
            OpenApiParameter(
                "If-None-Match",
                str,
                OpenApiParameter.HEADER,
                description="`ETag` of the last response: 304 if unchanged.",
            )
        ],
        errors=[404],
    )
    def retrieve(self, request: UserRequest, workspace_id: UUID) -> HttpResponse:
        workspace = self.get_object()
        unless_same = condition(etag_func=lambda _: etag_of(workspace))
        answer: HttpResponse = unless_same(lambda _: self.answer(workspace))(request)
        return answer

    def current(self) -> Response:
        # `retrieve` would compare `If-Match` as a strong version.
        return self.answer(self.get_object())

    @operation(
        "Change a workspace",
        description=(
            "Changes name, expected duration or priority. Omitted fields stay unchanged. Idempotent."
        ),
        request=WorkspaceChangeSerializer,
        responses={200: WorkspaceSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, workspace_id: UUID) -> Response:
        body = body_of(request, WorkspaceChangeSerializer)
        self._act(changes.change, **body)
        return self.answer(self.get_object())

    @operation(
        "Delete a workspace",
        description=(
            "Keeps the home folder of the user. Returns 202 while the workspace ends, and 204 once it has "
            "ended. Idempotent."
        ),
        responses={202: WorkspaceSerializer, 204: None},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, workspace_id: UUID) -> Response:
        self._act(services.delete)
        row = self.get_object()
        return Response(status=204) if row.state == State.TERMINATED else self._accepted_response(row)

    @operation(
        "Start a workspace",
        description="Starts a stopped or failed workspace. Idempotent.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[404, 409, 412, 422],
    )
    @action(detail=True, methods=["post"])
    def start(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted_after(services.start)

    @operation(
        "Stop a workspace",
        description="Files are kept. Idempotent.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"])
    def stop(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted_after(services.stop)

    @operation(
        "Extend a workspace",
        description=(
            "Moves the end of a running workspace, up to the limit of its flavor and the site, "
            "and cancels an announced stop. A repeated request with the same `Idempotency-Key` "
            "within 24 hours changes nothing and returns `Idempotent-Replayed: true`."
        ),
        request=ExtendSerializer,
        responses={200: WorkspaceSerializer},
        parameters=[idempotency.PARAMETER, IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    @action(detail=True, methods=["post"])
    def extend(self, request: UserRequest, workspace_id: UUID) -> Response:
        seconds: int = body_of(request, ExtendSerializer)["seconds"]
        extension = self._act(extending.extend, seconds=seconds, idempotency_key=idempotency.key_of(request))
        headers = {idempotency.REPLAYED: "true"} if extension.replayed else {}
        return self.answer(self.get_object(), status=200, **headers)

    @operation(
        "Release a workspace's GPUs",
        description=(
            "The workspace continues without accelerators. A running one restarts without them: "
            "kernels lose their variables, files are kept. A queued one no longer requests them, and a "
            "stopped one starts without them. They are free once the workspace no longer uses them. "
            "Idempotent."
        ),
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[404, 409, 412, 429],
    )
    @action(detail=True, methods=["post"], url_path="release-gpu")
    def release_gpu(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted_after(gpus.release)

    @operation(
        "Attach the GPUs of a workspace",
        description=(
            "Reverts `release-gpu`. A running workspace stops now and is queued for a start with its "
            "GPUs; `queue` has the estimated start. To continue without GPUs, release them again. "
            "Idempotent."
        ),
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[404, 409, 412, 429],
    )
    @action(detail=True, methods=["post"], url_path="attach-gpu")
    def attach_gpu(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted_after(gpus.attach)

    @operation(
        "Resize a workspace",
        description=(
            "Changes the flavor. A running workspace stops now and is queued for a start: kernels lose "
            "their variables, files are kept. A queued one requests the new flavor, and a stopped one uses "
            "it at the next start. An invalid request is denied before anything stops. Released GPUs "
            "stay released. Idempotent."
        ),
        request=ResizeSerializer,
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        retry_after_s=RETRY_AFTER_S,
        errors=[400, 404, 409, 412, 415, 422, 429],
    )
    @action(detail=True, methods=["post"])
    def resize(self, request: UserRequest, workspace_id: UUID) -> Response:
        flavor = catalog.flavor_by_slug(request.user, body_of(request, ResizeSerializer)["flavor"])
        return self._accepted_after(resizing.resize, flavor=flavor)

    def _accepted_after(self, service: Callable[..., Workspace], **arguments: Any) -> Response:
        self._act(service, **arguments)
        return self._accepted_response(self.get_object())

    def _accepted_response(self, workspace: WorkspaceRow) -> Response:
        return self.answer(workspace, status=202, Location=location_of(workspace))

    def _act(self, service: Callable[..., T], **arguments: Any) -> T:
        """Call the service, with the client's precondition if any, and return its result."""
        workspace_id = self.kwargs["workspace_id"]
        selectors.workspace_by_id(self.request.user, workspace_id)
        with transaction.atomic():
            require_match(self.request, workspace_id)
            return service(actor=self.request.user, workspace_id=workspace_id, **arguments)

    @operation(
        "Read a workspace's log",
        description="Returns the last lines of output. With `Accept: text/plain`, returns plain text.",
        responses={(200, "application/json"): LogSerializer, (200, "text/plain"): OpenApiTypes.STR},
        parameters=[TAIL],
        errors=[400, 404, 503],
    )
    @action(
        detail=True,
        query_params=frozenset({"tail"}),
        renderer_classes=[JSONRenderer, PlainTextRenderer],
    )
    def logs(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        lines = _tail(request)
        text = services.read_logs(workspace=workspace, tail_lines=lines)
        return Response(text if isinstance(request.accepted_renderer, PlainTextRenderer) else {"text": text})

    @operation(
        "Follow a workspace's log",
        description=(
            "Server-sent events: the last lines, then new output in whole lines. Each `text` continues the "
            "one before. Reconnect with `Last-Event-ID`, also when the stream ends after some minutes; no "
            "line repeats. A message with `over` means that the workspace is stopped, failed or deleted. "
            "The stream then ends, and a new request gets 204. If `kept` is true, the node has no log any "
            "more: `text` has the last stored lines, which may repeat earlier ones. `message` says why the "
            "log cannot be read at the moment."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR, 204: None},
        parameters=[
            TAIL,
            OpenApiParameter(
                "Last-Event-ID",
                int,
                OpenApiParameter.HEADER,
                description="Start after this message id. Default: start with the last lines.",
            ),
        ],
        errors=[400, 404, 429],
    )
    @action(
        detail=True,
        url_path="logs/stream",
        query_params=frozenset({"tail"}),
        renderer_classes=[stream.EventStreamRenderer, JSONRenderer],
    )
    def log_stream(self, request: UserRequest, workspace_id: UUID) -> Any:
        user = request.user
        workspace = selectors.workspace_by_id(user, workspace_id)
        lines = _tail(request)
        after = stream.last_event_id(request.headers.get("Last-Event-ID", ""))
        if after is None:
            raise InvalidInput(Reason(CommonCode.LAST_EVENT_ID_INVALID))
        if log_stream.is_fully_read(workspace, after):
            # Tells a browser's EventSource not to reconnect.
            return HttpResponse(status=204)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        read = log_stream.follow(user, workspace_id, lines, lambda: accounts.still_valid(user, token))
        return stream.response(
            live.workspace_channel(workspace_id),
            read,
            after=after,
            user_id=user.pk,
            every_s=log_stream.POLL_S,
            executor=log_stream.EXECUTOR,
        )


def _tail(request: UserRequest) -> int:
    lines: str = request.query_params.get("tail", "200")
    return whole_number(lines, WorkspaceCode.LINES_INVALID, field="tail", maximum=services.MAX_LOG_LINES)


def location_of(workspace: Workspace) -> str:
    """Return the path of the workspace's REST URL."""
    return reverse("api:workspace-detail", args=[workspace.pk])


def team_named(actor: User, slug: str) -> Team:
    """Return the named team, or the actor's only one."""
    if slug:
        with not_found_as_invalid("team"):
            return accounts.team_by_slug(actor, slug)
    own = list(accounts.chargeable_teams(actor)[:20])
    if len(own) == 1:
        return own[0]
    reason = (
        Reason(WorkspaceCode.TEAM_MISSING, {"known": [team.slug for team in own]})
        if own
        else Reason(WorkspaceCode.IN_NO_TEAM)
    )
    raise InvalidInput(reason, errors={"team": ["This field is required."]})


router = Router()
router.register("workspaces", WorkspaceViewSet)
urlpatterns = router.urls
