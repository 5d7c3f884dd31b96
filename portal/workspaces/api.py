"""Workspaces over REST: what the pages can do, for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.http import parse_etags
from django.views.decorators.http import condition
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
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
    filters,
    named_in,
    operation,
)
from portal.common.errors import InvalidInput, NotFound, PreconditionFailed
from portal.common.events import live, stream
from portal.common.events.models import Event
from portal.common.filtering import MomentFilter
from portal.common.pagination import whole_number
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken, Team, User
from portal.workspaces import changes, listing, log_stream, selectors, services, software
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.order import WorkspaceOrder
from portal.workspaces.serializers import (
    EventSerializer,
    LogSerializer,
    WorkspaceChangeSerializer,
    WorkspaceCreateSerializer,
    WorkspaceSerializer,
    etag_of,
    git_of,
    version_of,
    with_held,
)
from portal.workspaces.transitions import locked

SCOPES = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}
MAX_LOG_LINES = 5000
LOOK_AGAIN_S = 2
"""After how long a workspace that starts or ends may be further."""
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="Only while the workspace is as in the answer that had this `ETag`.",
)

TAIL = OpenApiParameter(
    "tail",
    {"type": "integer", "minimum": 1, "maximum": MAX_LOG_LINES, "default": 200},
    description="How many lines.",
)


class WorkspaceFilter(filters.FilterSet):
    state = filters.MultipleChoiceFilter(
        choices=State.choices, label="One or more states. Without it, all but `terminated`."
    )
    team = filters.CharFilter(field_name="team__slug", label="Short name of the team.")
    template = filters.CharFilter(field_name="template__slug", label="Short name of the template.")
    flavor = filters.CharFilter(field_name="flavor__slug", label="Short name of the flavor.")
    owner = filters.CharFilter(field_name="owner__username", label="Name of its user.")
    name = filters.CharFilter(label="Exactly this name.")
    created_after = MomentFilter(
        field_name="created_at", lookup_expr="gte", label="Created then or later (ISO 8601)."
    )
    created_before = MomentFilter(
        field_name="created_at", lookup_expr="lt", label="Created before then (ISO 8601)."
    )


@documented(
    list="List workspaces",
    of="Your own, those of teams that you own, and all for an operator; newest first without `sort`.",
)
class WorkspaceViewSet(ListViewSet):
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
        if self.action != "list":
            return with_held(selectors.workspaces_for(self.request.user))
        found = selectors.rows_for(self.request.user)
        return found if "state" in self.request.query_params else found.live()

    def paginate_queryset(self, queryset: Any) -> Any:
        found: Any = super().paginate_queryset(queryset.values(*listing.KEYS, "name"))
        return listing.listed([row["id"] for row in found])

    def get_object(self) -> Workspace:
        workspace_id = self.kwargs["workspace_id"]
        workspace = self.get_queryset().filter(pk=workspace_id).first()
        # The selector refuses what is not there.
        return workspace or selectors.workspace_by_id(self.request.user, workspace_id)

    def answer(self, row: Workspace, *, status: int = 200, **headers: str) -> Response:
        headers |= {"ETag": etag_of(row), "Cache-Control": "private, no-cache"}
        return super().answer(row, status=status, **headers)

    @operation(
        "Create a workspace",
        description=(
            "Starts it where there is room, else queues it. With an `Idempotency-Key`, repeating the request "
            "within a day creates nothing and answers with `Idempotent-Replayed: true`."
        ),
        request=WorkspaceCreateSerializer,
        responses={201: WorkspaceSerializer},
        parameters=[idempotency.PARAMETER],
        goes_on_s=LOOK_AGAIN_S,
        errors=[400, 409, 415, 422],
    )
    def create(self, request: UserRequest) -> Response:
        given = body_of(request, WorkspaceCreateSerializer)
        order = WorkspaceOrder(
            team=team_named(request.user, given.get("team", "")),
            template=catalog.template_by_slug(request.user, given["template"]),
            flavor=catalog.flavor_by_slug(request.user, given["flavor"]),
            name=given.get("name", ""),
            expected_s=given.get("expected_s"),
            lifetime_s=given.get("lifetime_s"),
            priority=given["priority"],
            checkpointed=given["checkpointed"],
            environment=software.named(request.user, given.get("environment", "")),
            secrets=given["secrets"],
            git=git_of(request, given),
            start_without_gpu=given["start_without_gpu"],
        )
        creation = services.create(
            actor=request.user, order=order, idempotency_key=idempotency.key_of(request)
        )
        self.kwargs["workspace_id"] = creation.workspace.pk
        headers = {"Location": location_of(creation.workspace)}
        if creation.replayed:
            headers[idempotency.REPLAYED] = "true"
        return self.answer(self.get_object(), status=201, **headers)

    @operation(
        "Read a workspace",
        description="With `If-None-Match` and the last answer's `ETag`: 304 while nothing has changed.",
        responses={200: WorkspaceSerializer, 304: OpenApiResponse(description="Nothing has changed.")},
        parameters=[
            OpenApiParameter(
                "If-None-Match",
                str,
                OpenApiParameter.HEADER,
                description="The last answer's `ETag`: 304 while nothing has changed since.",
            )
        ],
        errors=[404],
    )
    def retrieve(self, request: UserRequest, workspace_id: UUID) -> HttpResponse:
        workspace = self.get_object()
        unless_same = condition(etag_func=lambda _: etag_of(workspace))
        answer: HttpResponse = unless_same(lambda _: self.answer(workspace))(request)
        return answer

    @operation(
        "Change a workspace",
        description=(
            "Its name, the time for which it is needed, its priority. What is left out stays; saying what is "
            "so already changes nothing."
        ),
        request=WorkspaceChangeSerializer,
        responses={200: WorkspaceSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, workspace_id: UUID) -> Response:
        given = body_of(request, WorkspaceChangeSerializer)
        return self.answer(self._act(changes.change, **given))

    @operation(
        "Delete a workspace",
        description=(
            "Its user's home folder stays. 202 while it ends, 204 once nothing is left of it; "
            "repeating it is success."
        ),
        responses={202: WorkspaceSerializer, 204: None},
        parameters=[IF_MATCH],
        goes_on_s=LOOK_AGAIN_S,
        errors=[404, 409, 412],
    )
    def destroy(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = self._act(services.delete)
        return Response(status=204) if workspace.state == State.TERMINATED else self._accepted(workspace)

    @operation(
        "Start a workspace",
        description="A stopped one, or a failed one again. Starting what runs or starts is success.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        goes_on_s=LOOK_AGAIN_S,
        errors=[404, 409, 412, 422],
    )
    @action(detail=True, methods=["post"])
    def start(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted(self._act(services.start))

    @operation(
        "Stop a workspace",
        description="Its files stay. Stopping what is stopped or stopping is success.",
        responses={202: WorkspaceSerializer},
        parameters=[IF_MATCH],
        goes_on_s=LOOK_AGAIN_S,
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"])
    def stop(self, request: UserRequest, workspace_id: UUID) -> Response:
        return self._accepted(self._act(services.stop))

    def _accepted(self, workspace: Workspace) -> Response:
        return self.answer(workspace, status=202, Location=location_of(workspace))

    def _act(self, service: Callable[..., Workspace], **given: Any) -> Workspace:
        """Call the service, under the client's precondition where it sends one."""
        workspace_id = self.kwargs["workspace_id"]
        selectors.workspace_by_id(self.request.user, workspace_id)
        with transaction.atomic():
            require_match(self.request, workspace_id)
            service(actor=self.request.user, workspace_id=workspace_id, **given)
        return self.get_object()

    @operation(
        "Read a workspace's log",
        description="The last lines that its program wrote. `Accept: text/plain` answers with the bare text.",
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
            "Server-sent events: the last lines, then what its program writes, in whole lines; `text` of "
            "each is what follows that of the one before. Connect again with `Last-Event-ID`, also when the "
            "stream ends after some minutes: nothing is said twice. It ends for good, with 204 when asked "
            "again, after the message with `over`: the workspace is stopped, failed or deleted. Where "
            "`kept` is true its node has nothing any more: `text` are the last lines that were kept, which "
            "may have been told before. `message` says why nothing can be read just now."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR, 204: None},
        parameters=[
            TAIL,
            OpenApiParameter(
                "Last-Event-ID",
                int,
                OpenApiParameter.HEADER,
                description="Go on after this message; without it, with the last lines.",
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
        if log_stream.is_over(workspace, after):
            # Tells a browser's EventSource not to come back.
            return HttpResponse(status=204)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        look = log_stream.follow(user, workspace_id, lines, lambda: accounts.still_valid(user, token))
        return stream.response(
            live.workspace_channel(workspace_id),
            look,
            after=after,
            user_id=user.pk,
            every_s=log_stream.POLL_S,
            executor=log_stream.EXECUTOR,
        )


def _tail(request: UserRequest) -> int:
    given: str = request.query_params.get("tail", "200")
    return whole_number(given, WorkspaceCode.LINES_INVALID, field="tail", maximum=MAX_LOG_LINES)


def location_of(workspace: Workspace) -> str:
    """The path at which it is read."""
    return reverse("api:workspace-detail", args=[workspace.pk])


def require_match(request: UserRequest, workspace_id: UUID) -> None:
    """Lock the row and compare it with `If-Match`. Raises `PreconditionFailed`.

    Not by `condition`, for which a weak tag matches nothing (RFC 9110, 13.1.1): ours promises that what
    a person would act on is as it was, which is the part before its dot.
    """
    header = request.headers.get("If-Match", "").strip()
    if not header or header == "*":
        return
    present = locked(workspace_id)
    versions = {tag.removeprefix("W/").strip('"').partition(".")[0] for tag in parse_etags(header)}
    if version_of(present) not in versions:
        label = State(present.state).label.lower()
        raise PreconditionFailed(
            Reason(
                WorkspaceCode.VERSION_CHANGED, {"name": present.name, "state": present.state, "label": label}
            ),
            state=present.state,
        )


def team_named(actor: User, slug: str) -> Team:
    """The team named, or the only one that the actor has."""
    if slug:
        with named_in("team"):
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


def _stream(request: UserRequest, workspace_id: UUID) -> HttpResponse | StreamingHttpResponse:
    """The events after `Last-Event-ID`, then each new one as it happens."""
    user = request.user
    workspace = selectors.workspace_by_id(user, workspace_id)
    after = stream.last_event_id(request.headers.get("Last-Event-ID", ""))
    if after is None:
        raise InvalidInput(Reason(CommonCode.LAST_EVENT_ID_INVALID))
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


class EventViewSet(ListViewSet):
    queryset = Event.objects.none()
    serializer_class = EventSerializer
    renderer_classes = [JSONRenderer, stream.EventStreamRenderer]
    scopes = SCOPES
    ordering = ("id",)

    def get_queryset(self) -> QuerySet[Event]:
        workspace = selectors.workspace_by_id(self.request.user, self.kwargs["workspace_id"])
        return selectors.events_of(workspace)

    @operation(
        "List a workspace's events",
        description="Oldest first. `Accept: text/event-stream` answers like `events/stream`.",
        responses={(200, "application/json"): EventSerializer(many=True)},
        errors=[400, 404],
    )
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if isinstance(request.accepted_renderer, stream.EventStreamRenderer):
            return _stream(self.request, self.kwargs["workspace_id"])
        return super().list(request, *args, **kwargs)

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
    @action(
        detail=False,
        url_path="stream",
        renderer_classes=[stream.EventStreamRenderer, JSONRenderer],
    )
    def follow(self, request: UserRequest, workspace_id: UUID) -> Any:
        return _stream(request, workspace_id)


router = Router()
router.register("workspaces", WorkspaceViewSet)
router.register("workspaces/<uuid:workspace_id>/events", EventViewSet, basename="workspace-event")
urlpatterns = router.urls
