"""REST API of the event feed: a list that can be resumed, and a stream."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.renderers import JSONRenderer

from portal.common.api import ListViewSet, Router, UserRequest, filters, operation
from portal.common.errors import InvalidInput
from portal.common.events import live, stream
from portal.common.events.event_types import TYPES
from portal.common.events.models import Event
from portal.common.filtering import MomentFilter
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.scopes import Scope
from portal.notify.webhooks import payloads
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import ApiToken, User
from portal.web.event_feed import selectors


class FeedEventSerializer(serializers.Serializer[Event]):
    """An event as sent to webhooks, with an id from which to resume."""

    id = serializers.IntegerField(help_text="Increases with time. Use it in `after` and `Last-Event-ID`.")
    type = serializers.ChoiceField(
        choices=sorted(TYPES), help_text="Type of the event. `webhook-event-types` explains each type."
    )
    timestamp = serializers.DateTimeField(help_text="Time of the event.")
    data = serializers.DictField(  # type: ignore[assignment]
        help_text=(
            "Data of the event: `entry` (its id), `action` and `actor`. If they apply: `workspace`, "
            "`team`, `pool`, `devices`, `node`, `quota_request`, `reservation`, `owner`, `requester` "
            "or `user`, with REST URLs where they exist. Also short values such as `code`, `from` and "
            "`to`."
        )
    )

    def to_representation(self, instance: Event) -> dict[str, Any]:
        return {"id": instance.pk, **payloads.entry_payload(instance)}


AFTER = "Only events after this `id`."


@extend_schema_field({"type": "integer", "format": "int64", "minimum": 0, "description": AFTER})
class IdFilter(filters.NumberFilter):
    field_class = forms.IntegerField


class FeedFilter(filters.FilterSet):
    after = IdFilter(
        field_name="pk",
        lookup_expr="gt",
        min_value=0,
        max_value=2**63 - 1,
        label=AFTER,
    )
    since = MomentFilter(field_name="at", lookup_expr="gte", label="Only entries at or after this time.")
    type = filters.MultipleChoiceFilter(
        choices=[(name, name) for name in sorted(TYPES)],
        method="filter_types",
        label="Only events of this type. Can be repeated.",
    )
    team = filters.CharFilter(field_name="team__slug", label="Slug of a team.", max_length=255)
    workspace = filters.UUIDFilter(field_name="workspace", label="Only events of this workspace, by id.")

    def filter_types(self, queryset: QuerySet[Event], _name: str, values: list[str]) -> QuerySet[Event]:
        kinds = [kind for value in values for kind in TYPES[value].kinds]
        return queryset.filter(kind__in=kinds) if kinds else queryset


NARROWED = [
    OpenApiParameter(
        "type", str, enum=sorted(TYPES), many=True, description="Only events of this type. Can be repeated."
    ),
    OpenApiParameter("team", str, description="Slug of a team."),
    OpenApiParameter("workspace", OpenApiTypes.UUID, description="Only events of this workspace, by id."),
]
FROM_NOW = OpenApiParameter(
    "Last-Event-ID",
    int,
    OpenApiParameter.HEADER,
    description="Start after this event id. 0 starts with the first event. Default: new events only.",
)


class FeedViewSet(ListViewSet):
    tag = "notices"
    operation_ids = {"list": "listEvents", "follow": "followEvents"}
    queryset = Event.objects.none()
    serializer_class = FeedEventSerializer
    filterset_class = FeedFilter
    scopes = {"GET": Scope.EVENTS_READ, "*": Scope.EVENTS_READ}
    ordering = ("id",)
    sorts = {"id": ("id",), "-id": ("-id",)}

    def get_queryset(self) -> QuerySet[Event]:
        return selectors.events_for(self.request.user).filter(pk__lte=selectors.last_complete_id())

    @operation(
        "List events",
        description=(
            "Oldest first, unless `sort` is set. Lists events of workspaces, quotas, reservations and "
            "teams that you can see. Operators and auditors also see events of nodes, devices and "
            "pools; administrators and auditors those of accounts. To continue later, send the last "
            "`id` as `after`: no event is lost or repeated."
        ),
        responses={200: FeedEventSerializer(many=True)},
        errors=[400],
    )
    def list(self, request: UserRequest, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().list(request, *args, **kwargs)

    @operation(
        "Follow events",
        description=(
            "Server-sent events. The message name is the event type, the message id the event "
            "id, and the data as in the list. Comments keep the connection open. The stream ends "
            "after some minutes: reconnect with `Last-Event-ID`. No event is lost."
        ),
        responses={(200, stream.MEDIA_TYPE): OpenApiTypes.STR},
        parameters=[*NARROWED, FROM_NOW],
        errors=[400, 429],
        filters=False,
    )
    @action(
        detail=False,
        url_path="stream",
        query_params=frozenset({"type", "team", "workspace"}),
        renderer_classes=[stream.EventStreamRenderer, JSONRenderer],
        pagination_class=None,
    )
    def follow(self, request: UserRequest) -> Any:
        header = request.headers.get("Last-Event-ID", "")
        after = stream.last_event_id(header)
        if after is None:
            raise InvalidInput(Reason(CommonCode.LAST_EVENT_ID_INVALID))
        # Evaluated before the stream begins, so that an invalid filter gives an error response.
        self.filter_queryset(selectors.events_for(request.user))
        if not header:
            after = selectors.last_complete_id()
        user, token = request.user, request.auth if isinstance(request.auth, ApiToken) else None

        def read(after: int) -> stream.Batch:
            if not accounts.still_valid(user, token):
                return stream.Batch(over=True)
            visible = selectors.events_for(User.objects.get(pk=user.pk))
            rows = self.filter_queryset(visible.filter(pk__gt=after, pk__lte=selectors.last_complete_id()))
            events: Any = list(rows[: stream.BATCH])
            data: Any = FeedEventSerializer(events, many=True).data
            return stream.Batch(list(data))

        return stream.response(live.FEED_CHANNEL, read, after=after, user_id=user.pk, named_by="type")


router = Router()
router.register("events", FeedViewSet, basename="event")
urlpatterns = router.urls
