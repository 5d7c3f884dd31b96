"""Workspaces over REST: what the pages can do, for programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from portal.accounts import selectors as accounts
from portal.accounts.models import ApiToken, Team, User
from portal.catalog import selectors as catalog
from portal.common.api import (
    ApiView,
    ListView,
    PlainTextRenderer,
    PreconditionFailed,
    UserRequest,
    filters,
    operation,
    routes,
)
from portal.common.errors import InvalidInput, NotFound
from portal.common.scopes import Scope
from portal.events import live, stream
from portal.events.models import Event
from portal.workspaces import selectors, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.serializers import (
    EventSerializer,
    LogSerializer,
    WorkspaceCreateSerializer,
    WorkspaceSerializer,
    etag_of,
    version_of,
    with_held,
)

SCOPES = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}
MAX_LOG_LINES = 5000
_KEY = re.compile(r"[\x21-\x7e]{1,120}")
_ETAG = re.compile(r'(?:W/)?"([^"]*)"')

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only while the workspace is as in the answer that had this `ETag`.",
)


def _shown(actor: User, workspace_id: UUID) -> Workspace:
    workspace = with_held(selectors.workspaces_for(actor)).filter(pk=workspace_id).first()
    if workspace is None:
        # Says it in the selector's words.
        return selectors.workspace_by_id(actor, workspace_id)
    return workspace


def _answer(workspace: Workspace, *, status: int = 200, **headers: str) -> Response:
    return Response(
        WorkspaceSerializer(workspace).data,
        status=status,
        headers={"ETag": etag_of(workspace), "Cache-Control": "private, no-cache", **headers},
    )


def _tags(header: str) -> list[str]:
    return [found.group(1) for found in _ETAG.finditer(header)]


class WorkspaceFilter(filters.FilterSet):
    state = filters.MultipleChoiceFilter(
        choices=State.choices, label="One or more states. Without it, all but `terminated`."
    )
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    template = filters.CharFilter(field_name="template__slug", label="Short name of the template.")
    flavor = filters.CharFilter(field_name="flavor__slug", label="Short name of the flavor.")
    owner = filters.CharFilter(field_name="owner__username", label="Name of its user.")
    name = filters.CharFilter(label="Exactly this name.")


class WorkspaceList(ListView):
    scopes = SCOPES
    serializer_class = WorkspaceSerializer
    filterset_class = WorkspaceFilter
    ordering = ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[Workspace]:
        if self.documenting():
            return Workspace.objects.none()
        found = selectors.workspaces_for(self.request.user)
        if "state" not in self.request.query_params:
            found = found.live()
        return with_held(found)

    @operation(
        "List workspaces",
        description="Your own, those of teams that you own, and all for an operator; newest first.",
        responses={200: WorkspaceSerializer(many=True)},
        errors=[400],
    )
    def get(self, request: UserRequest) -> Response:
        return self.list(request)

    @operation(
        "Create a workspace",
        description=(
            "Starts it where there is room, else queues it. With an `Idempotency-Key`, repeating the request "
            "within a day creates nothing and answers with `Idempotent-Replayed: true`."
        ),
        request=WorkspaceCreateSerializer,
        responses={201: WorkspaceSerializer},
        parameters=[
            OpenApiParameter(
                "Idempotency-Key",
                {"type": "string", "pattern": "^[!-~]{1,120}$"},
                OpenApiParameter.HEADER,
                description="Any text of your choice, new for each new request.",
            )
        ],
        errors=[400, 409, 415, 422],
    )
    def post(self, request: UserRequest) -> Response:
        body = WorkspaceCreateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        creation = services.create_once(
            actor=request.user,
            team=team_named(request.user, given.get("team", "")),
            template=catalog.template_by_slug(given["template"]),
            flavor=catalog.flavor_by_slug(given["flavor"]),
            name=given.get("name", ""),
            idempotency_key=_idempotency_key(request),
            expected_s=round(hours * 3600) if (hours := given.get("expected_hours")) else None,
            priority=given["priority"],
        )
        headers = {"Location": reverse("api:workspace", args=[creation.workspace.pk])}
        if creation.replayed:
            headers["Idempotent-Replayed"] = "true"
        return _answer(_shown(request.user, creation.workspace.pk), status=201, **headers)


def team_named(actor: User, slug: str) -> Team:
    """The team named, or the only one that the actor has."""
    if slug:
        try:
            return accounts.team_by_slug(actor, slug)
        except NotFound as error:
            raise InvalidInput(
                error.message, next_action=error.next_action, errors={"team": [error.message]}
            ) from error
    own = list(accounts.own_teams(actor)[:20])
    if len(own) == 1:
        return own[0]
    known = ", ".join(team.slug for team in own)
    raise InvalidInput(
        "Say which team pays." if own else "You are in no team, and every workspace is charged to one.",
        next_action=f"Choose one of: {known}." if own else "Ask an owner of a team to add you.",
        errors={"team": ["This field is required."]},
    )


def _idempotency_key(request: UserRequest) -> str:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is None:
        return ""
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            "The Idempotency-Key is not valid.",
            next_action="Use 1 to 120 letters, digits and signs without spaces, for example a UUID.",
            code="idempotency_key_invalid",
        )
    return key


class WorkspaceDetail(ApiView):
    scopes = SCOPES

    @operation(
        "Read a workspace",
        description="With `If-None-Match` and the last answer's `ETag`: 304 while nothing has changed.",
        responses={200: WorkspaceSerializer, 304: OpenApiResponse(description="Nothing has changed.")},
        parameters=[OpenApiParameter("If-None-Match", str, OpenApiParameter.HEADER)],
        errors=[404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _shown(request.user, workspace_id)
        wanted = request.headers.get("If-None-Match", "")
        if wanted.strip() == "*" or set(_tags(etag_of(workspace))) & set(_tags(wanted)):
            return Response(status=304, headers={"ETag": etag_of(workspace)})
        return _answer(workspace)

    @operation(
        "Delete a workspace",
        description=(
            "Its user's home folder stays. 202 while it ends, 204 once nothing is left of it; "
            "repeating it is success."
        ),
        responses={202: WorkspaceSerializer, 204: None},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def delete(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _act(request, workspace_id, services.delete)
        return Response(status=204) if workspace.state == State.TERMINATED else _answer(workspace, status=202)


def _act(request: UserRequest, workspace_id: UUID, service: Callable[..., Workspace]) -> Workspace:
    """Call the service, under the client's precondition where it sends one."""
    selectors.workspace_by_id(request.user, workspace_id)
    wanted = request.headers.get("If-Match", "").strip()
    with transaction.atomic():
        if wanted and wanted != "*":
            present = selectors.locked(workspace_id)
            # The agent's measurements, behind the dot, do not matter here.
            if version_of(present) not in {tag.partition(".")[0] for tag in _tags(wanted)}:
                raise PreconditionFailed(
                    f"{present.name} has changed since you looked: it is "
                    f"{State(present.state).label.lower()} now.",
                    next_action="Read it again and decide anew.",
                    state=present.state,
                )
        service(actor=request.user, workspace_id=workspace_id)
    return _shown(request.user, workspace_id)


class WorkspaceStart(ApiView):
    scopes = SCOPES

    @operation(
        "Start a workspace",
        description="A stopped one, or a failed one again. Starting what runs or starts is success.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        errors=[404, 409, 412, 422],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        return _answer(_act(request, workspace_id, services.start), status=202)


class WorkspaceStop(ApiView):
    scopes = SCOPES

    @operation(
        "Stop a workspace",
        description="Its files stay. Stopping what is stopped or stopping is success.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        return _answer(_act(request, workspace_id, services.stop), status=202)


def _stream(request: UserRequest, workspace_id: UUID) -> HttpResponse | StreamingHttpResponse:
    """The events after `Last-Event-ID`, then each new one as it happens."""
    user = request.user
    workspace = selectors.workspace_by_id(user, workspace_id)
    after = stream.last_event_id(request.headers.get("Last-Event-ID", ""))
    if after is None:
        raise InvalidInput(
            "The Last-Event-ID is not one of ours.",
            next_action="Send the id of an event of this workspace, or leave it out.",
        )

    token = request.auth if isinstance(request.auth, ApiToken) else None

    def look(after: int) -> stream.Batch:
        if not accounts.still_valid(user, token):
            return stream.Batch(over=True)
        try:
            seen = selectors.workspace_by_id(user, workspace_id)
        except NotFound:
            return stream.Batch(over=True)
        rows = list(selectors.events_of(seen, after=after)[: stream.BATCH])
        data: Any = EventSerializer(rows, many=True).data
        # Nothing follows the end. The state was read before the events, so none is left behind.
        return stream.Batch(list(data), over=seen.state == State.TERMINATED and len(rows) < stream.BATCH)

    if workspace.state == State.TERMINATED and not selectors.events_of(workspace, after=after).exists():
        # Tells a browser's EventSource not to come back.
        return HttpResponse(status=204)
    return stream.response(live.workspace_channel(workspace_id), look, after=after, user_id=user.pk)


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    int,
    OpenApiParameter.HEADER,
    description="Go on after this event; without it, from the first.",
)


class WorkspaceEvents(ListView):
    scopes = SCOPES
    serializer_class = EventSerializer
    renderer_classes = [JSONRenderer, stream.EventStreamRenderer]
    ordering = ("id",)

    def get_queryset(self) -> QuerySet[Event]:
        if self.documenting():
            return Event.objects.none()
        workspace = selectors.workspace_by_id(self.request.user, self.kwargs["workspace_id"])
        return selectors.events_of(workspace)

    @operation(
        "List a workspace's events",
        description="Oldest first. `Accept: text/event-stream` answers like `events/stream`.",
        responses={(200, "application/json"): EventSerializer(many=True)},
        errors=[400, 404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Any:
        if request.accepted_renderer.format == stream.EventStreamRenderer.format:
            return _stream(request, workspace_id)
        return self.list(request)


class WorkspaceEventStream(ApiView):
    scopes = SCOPES
    renderer_classes = [stream.EventStreamRenderer, JSONRenderer]

    @operation(
        "Follow a workspace's events",
        description=(
            "Server-sent events: those so far, then each as it happens. The id of a message is the event's, "
            "its data the event as in the list. Comments keep the connection open. After some minutes the "
            "stream ends: connect again with `Last-Event-ID`. It ends for good, with 204 when asked again, "
            "once the workspace is deleted."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR, 204: None},
        parameters=[LAST_EVENT_ID],
        errors=[400, 404, 429],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Any:
        return _stream(request, workspace_id)


class WorkspaceLogs(ApiView):
    scopes = SCOPES
    query_params = frozenset({"tail"})
    renderer_classes = [JSONRenderer, PlainTextRenderer]

    @operation(
        "Read a workspace's log",
        description="The last lines that its program wrote. `Accept: text/plain` answers with the bare text.",
        responses={(200, "application/json"): LogSerializer, (200, "text/plain"): OpenApiTypes.STR},
        parameters=[
            OpenApiParameter(
                "tail",
                {"type": "integer", "minimum": 1, "maximum": MAX_LOG_LINES, "default": 200},
                description="How many lines.",
            )
        ],
        errors=[400, 404, 503],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        text = services.read_logs(workspace=workspace, tail_lines=_tail(request))
        if request.accepted_renderer.format == PlainTextRenderer.format:
            return Response(text)
        return Response({"text": text})


def _tail(request: UserRequest) -> int:
    given: str = request.query_params.get("tail", "200")
    if given.isascii() and given.isdigit() and len(given) < 8 and 1 <= int(given) <= MAX_LOG_LINES:
        return int(given)
    sentence = f"Choose a number from 1 to {MAX_LOG_LINES}."
    raise InvalidInput("The number of lines is not valid.", next_action=sentence, errors={"tail": [sentence]})


ONE = "workspaces/<uuid:workspace_id>"
urlpatterns = [
    *routes("workspaces", WorkspaceList, "workspaces"),
    *routes(ONE, WorkspaceDetail, "workspace"),
    *routes(f"{ONE}/start", WorkspaceStart, "workspace-start"),
    *routes(f"{ONE}/stop", WorkspaceStop, "workspace-stop"),
    *routes(f"{ONE}/events", WorkspaceEvents, "workspace-events"),
    *routes(f"{ONE}/events/stream", WorkspaceEventStream, "workspace-event-stream"),
    *routes(f"{ONE}/logs", WorkspaceLogs, "workspace-logs"),
]
