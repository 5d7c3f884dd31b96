"""REST API of a workspace's events: a list, and a live stream."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from portal.common.api import ListViewSet, Router, UserRequest, operation
from portal.common.errors import InvalidInput, NotFound
from portal.common.events import live, stream
from portal.common.events.models import Event
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken
from portal.workspaces import selectors
from portal.workspaces.api import SCOPES
from portal.workspaces.lifecycle import State
from portal.workspaces.serializers import EventSerializer


def _stream(request: UserRequest, workspace_id: UUID) -> HttpResponse | StreamingHttpResponse:
    """Stream the events after `Last-Event-ID`, then new events as they happen."""
    user = request.user
    workspace = selectors.workspace_by_id(user, workspace_id)
    after = stream.last_event_id(request.headers.get("Last-Event-ID", ""))
    if after is None:
        raise InvalidInput(Reason(CommonCode.LAST_EVENT_ID_INVALID))
    token = request.auth if isinstance(request.auth, ApiToken) else None

    def read(after: int) -> stream.Batch:
        if not accounts.still_valid(user, token):
            return stream.Batch(over=True)
        try:
            seen = selectors.workspace_by_id(user, workspace_id)
        except NotFound:
            return stream.Batch(over=True)
        rows = list(selectors.events_of(seen, after=after)[: stream.BATCH])
        data: Any = EventSerializer(rows, many=True).data
        # The state was read before the events, so none is missed before the end.
        return stream.Batch(list(data), over=seen.state == State.TERMINATED and len(rows) < stream.BATCH)

    if workspace.state == State.TERMINATED and not selectors.events_of(workspace, after=after).exists():
        # Tells a browser's EventSource not to reconnect.
        return HttpResponse(status=204)
    return stream.response(live.workspace_channel(workspace_id), read, after=after, user_id=user.pk)


LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    int,
    OpenApiParameter.HEADER,
    description="Start after this event id. Default: from the first event.",
)


class EventViewSet(ListViewSet):
    tag = "workspaces"
    operation_ids = {"list": "listWorkspaceEvents", "follow": "followWorkspaceEvents"}
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
        description="Oldest first. With `Accept: text/event-stream`, responds like `events/stream`.",
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
            "Server-sent events: past events, then new ones. The message id is the event id, and the "
            "data as in the list. Comments keep the connection open. The stream ends after some "
            "minutes: reconnect with `Last-Event-ID`. Once the workspace is deleted, the stream ends "
            "and a new request gets 204."
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
router.register("workspaces/<uuid:workspace_id>/events", EventViewSet, basename="workspace-event")
urlpatterns = router.urls
