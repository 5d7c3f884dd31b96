"""REST API of notice channels."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ListViewSet,
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    filters,
    not_found_as_invalid,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.scopes import Scope
from portal.notify.channels import policies, selectors, services
from portal.notify.channels.codes import ChannelCode
from portal.notify.channels.models import Channel, Message, MessageState
from portal.people.accounts.models import Team

SCOPES = {"GET": Scope.WEBHOOKS_READ, "*": Scope.WEBHOOKS_WRITE}


class ChannelSerializer(serializers.ModelSerializer[Channel]):
    """A destination of notices besides the portal and e-mail. The URL is secret and never returned."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    kinds = serializers.ListField(
        child=serializers.CharField(),
        help_text="Notices to send: subjects for your own channel, event types for a team's.",
    )
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="Time of the first of the current consecutive failures; null for none."
    )
    disabled_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was disabled; null while enabled."
    )

    class Meta:
        model = Channel
        fields = [
            "id",
            "team",
            "name",
            "service",
            "kinds",
            "enabled",
            "disabled_at",
            "failing_since",
            "created_at",
        ]
        read_only_fields = fields


class ChannelCreateSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80)
    url = serializers.CharField(
        max_length=1000, help_text="Apprise URL, or the webhook URL from Slack, Teams or another service."
    )
    kinds = serializers.ListField(
        child=serializers.CharField(max_length=60),
        allow_empty=False,
        max_length=100,
        help_text="Notices to send: subjects for your own channel, event types for a team's.",
    )
    team = serializers.CharField(
        max_length=40, required=False, help_text="Slug of the team. Default: your own channel."
    )

    examples = {"url": "https://hooks.example.org/services/T01/B02", "kinds": ["workspace.failed"]}


class ChannelChangeSerializer(StrictSerializer):
    """Fields to change. Omitted fields stay unchanged."""

    name = serializers.CharField(max_length=80, required=False)
    url = serializers.CharField(
        max_length=1000, required=False, help_text="URL that notices are sent to. Treated as a secret."
    )
    kinds = serializers.ListField(
        child=serializers.CharField(max_length=60),
        allow_empty=False,
        max_length=100,
        required=False,
        help_text="Notices to send: subjects for your own channel, event types for a team's.",
    )
    enabled = serializers.BooleanField(required=False)

    examples = {"url": "https://hooks.example.org/services/T01/B02", "kinds": ["workspace.failed"]}


class MessageSerializer(serializers.ModelSerializer[Message]):
    """A message sent to a channel, with the service's response to the latest attempt."""

    state = serializers.ChoiceField(MessageState.choices)
    next_attempt_at = serializers.DateTimeField(
        source="due_at", allow_null=True, help_text="Time of the next attempt."
    )
    answer = serializers.SerializerMethodField(
        help_text=(
            "Response to the last attempt. Empty for auditors, because responses can repeat the message."
        )
    )

    class Meta:
        model = Message
        fields = [
            "id",
            "kind",
            "title",
            "state",
            "attempts",
            "created_at",
            "ended_at",
            "next_attempt_at",
            "status_code",
            "error",
            "answer",
        ]
        read_only_fields = fields

    def get_answer(self, message: Message) -> str:
        """Return the response, or "" if the user may not see it (`only_sees` in the context)."""
        return "" if self.context.get("only_sees") else message.answer


class ChannelFilter(filters.FilterSet):
    team = filters.CharFilter(
        method="filter_nothing",
        label="Slug of a team. Lists its channels instead of your own.",
        max_length=40,
    )

    def filter_nothing(self, queryset: QuerySet[Channel], _name: str, _value: str) -> QuerySet[Channel]:
        """Return the queryset unchanged: the view has already selected the channels."""
        return queryset


@documented(
    list="List notice channels",
    of="Lists your own channels, or with `team` those of a team, for its owners, operators and auditors.",
    retrieve="Read a channel",
    errors=[404],
)
class ChannelViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"disabled_at", "failing_since"})
    tag = "notices"
    operation_ids = {
        "list": "listNoticeChannels",
        "create": "createNoticeChannel",
        "retrieve": "getNoticeChannel",
        "partial_update": "updateNoticeChannel",
        "destroy": "deleteNoticeChannel",
        "test": "testNoticeChannel",
    }
    queryset = Channel.objects.none()
    serializer_class = ChannelSerializer
    filterset_class = ChannelFilter
    scopes = SCOPES
    ordering = ("created_at", "id")
    missing = ChannelCode.NO_SUCH_CHANNEL
    lookup_url_kwarg = "channel_id"
    lookup_value_converter = "uuid"

    def _team(self, slug: str | None) -> Team | None:
        return selectors.team_of(self.request.user, slug) if slug else None

    def get_queryset(self) -> QuerySet[Channel]:
        return selectors.channels_of(self.request.user, self._team(self.request.query_params.get("team")))

    def get_object(self) -> Channel:
        return selectors.channel_by_id(self.request.user, self.kwargs["channel_id"])

    def managed(self) -> Channel:
        return selectors.managed_channel(self.request.user, self.kwargs["channel_id"])

    @operation(
        "Create a channel",
        idempotent=True,
        description=(
            "Creates a channel of your own, or with `team` one of a team, for its owners and operators."
        ),
        request=ChannelCreateSerializer,
        responses={201: ChannelSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, ChannelCreateSerializer)
        with not_found_as_invalid("team"):
            team = self._team(body.pop("team", None))
        channel = services.create(actor=request.user, team=team, **body)
        return self.answer(channel, status=201, Location=reverse("api:channel-detail", args=[channel.pk]))

    @operation(
        "Change a channel",
        description="Omitted fields stay unchanged.",
        request=ChannelChangeSerializer,
        responses={200: ChannelSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, channel_id: UUID) -> Response:
        body = body_of(request, ChannelChangeSerializer)
        expected = etags.expected_versions(request)
        row = services.change(actor=request.user, channel=self.managed(), expected=expected, **body)
        return self.answer(row)

    @operation("Delete a channel", responses={204: None}, parameters=[IF_MATCH], errors=[404, 412])
    def destroy(self, request: UserRequest, channel_id: UUID) -> Response:
        services.delete(actor=request.user, channel=self.managed(), expected=etags.expected_versions(request))
        return Response(status=204)

    @operation(
        "Test a channel",
        idempotent=True,
        description="Sends a test message once, in the background. The message shows the response.",
        request=None,
        responses={202: MessageSerializer},
        retry_after_s=2,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def test(self, request: UserRequest, channel_id: UUID) -> Response:
        message = services.send_test(actor=request.user, channel=self.managed())
        location = reverse("api:channel-message-list", args=[channel_id])
        return Response(MessageSerializer(message).data, status=202, headers={"Location": location})


class MessageFilter(filters.FilterSet):
    state = filters.ChoiceFilter(choices=MessageState.choices, label="Only those in this state.")


@documented(list="List messages of a channel", of="Newest first.", errors=[404])
class MessageViewSet(ListViewSet):
    tag = "notices"
    operation_ids = {"list": "listNoticeChannelMessages"}
    queryset = Message.objects.none()
    serializer_class = MessageSerializer
    filterset_class = MessageFilter
    scopes = SCOPES
    ordering = ("-id",)

    @cached_property
    def _channel(self) -> Channel:
        return selectors.channel_by_id(self.request.user, self.kwargs["channel_id"])

    def get_queryset(self) -> Any:
        return selectors.messages_of(self._channel)

    def get_serializer_context(self) -> dict[str, Any]:
        only_sees = policies.has_read_only_access(self.request.user, self._channel.team)
        return {**super().get_serializer_context(), "only_sees": only_sees}


router = Router()
router.register("notice-channels", ChannelViewSet, basename="channel")
router.register("notice-channels/<uuid:channel_id>/messages", MessageViewSet, basename="channel-message")
urlpatterns = router.urls
