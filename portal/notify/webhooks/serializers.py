"""REST serializers of webhooks and deliveries."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.events.event_types import Audience
from portal.notify.webhooks import policies
from portal.notify.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint
from portal.notify.webhooks.presenters import url_origin


def _secrets(serializer: serializers.Serializer[Any]) -> bool:
    """Return whether the user may see secrets, because the user manages webhooks."""
    request = serializer.context.get("request")
    return request is None or not policies.has_read_only_access(request.user)


class WebhookSerializer(serializers.ModelSerializer[Endpoint]):
    """A webhook. `team` is null for a webhook of the site."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    url = serializers.SerializerMethodField(
        help_text="URL of the receiver. Auditors see only scheme and host."
    )
    types = serializers.ListField(child=serializers.CharField(), help_text="Types of the events to send.")
    previous_secret_until = serializers.DateTimeField(
        source="previous_until",
        allow_null=True,
        help_text="Time until which the previous secret also signs; null for none.",
    )
    failing_since = serializers.DateTimeField(
        allow_null=True, help_text="Time of the first of the current consecutive failures; null for none."
    )
    disabled_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was disabled; null while enabled."
    )

    class Meta:
        model = Endpoint
        fields = [
            "id",
            "team",
            "name",
            "url",
            "types",
            "enabled",
            "disabled_at",
            "failing_since",
            "previous_secret_until",
            "created_at",
        ]
        read_only_fields = fields

    def get_url(self, endpoint: Endpoint) -> str:
        return endpoint.url if _secrets(self) else url_origin(endpoint.url)


class NewWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which is shown only once."""

    secret = serializers.SerializerMethodField(help_text="The signing secret. Shown only once.")

    class Meta(WebhookSerializer.Meta):
        fields = [*WebhookSerializer.Meta.fields, "secret"]
        read_only_fields = fields

    def get_secret(self, _endpoint: Endpoint) -> str:
        return str(self.context["secret"])


class WebhookCreateSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80, help_text="Name of the receiver.")
    url = serializers.CharField(
        max_length=1000,
        help_text="URL of the receiver. Must start with `https://` and have a public address.",
    )
    types = serializers.ListField(
        child=serializers.CharField(max_length=60),
        allow_empty=False,
        max_length=200,
        help_text="Event types to send, as listed by `webhook-event-types`.",
    )

    examples = {"url": "https://ci.example.org/berth", "types": ["workspace.started"]}


class WebhookChangeSerializer(WebhookCreateSerializer):
    """Fields to change. Omitted fields stay unchanged."""

    enabled = serializers.BooleanField(
        help_text="Whether the webhook is enabled. True also resets its failures."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "partial": True})


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """A delivery attempt.

    `error` is set if there was no response; `answer` is the first 1 KiB of the response.
    """

    answer = serializers.SerializerMethodField(
        help_text=(
            "First 1 KiB of the response. Empty for auditors, because responses can repeat the payload."
        )
    )

    class Meta:
        model = Attempt
        fields = ["number", "at", "duration_ms", "status_code", "error", "answer"]
        read_only_fields = fields

    def get_answer(self, attempt: Attempt) -> str:
        return attempt.answer if _secrets(self) else ""


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """A delivery of an event to a webhook, with all attempts."""

    message_id = serializers.CharField(help_text="Header `webhook-id`, the same for every attempt.")
    state = serializers.ChoiceField(DeliveryState.choices)
    next_attempt_at = serializers.DateTimeField(
        source="due_at", allow_null=True, help_text="Time of the next attempt."
    )
    attempts = AttemptSerializer(many=True, help_text="Delivery attempts with the response to each.")

    class Meta:
        model = Delivery
        fields = [
            "id",
            "message_id",
            "type",
            "state",
            "created_at",
            "ended_at",
            "next_attempt_at",
            "payload",
            "attempts",
        ]
        read_only_fields = fields


class EventTypeSerializer(serializers.Serializer[Any]):
    """An event type that you can receive."""

    name = serializers.CharField()
    summary = serializers.CharField(help_text="Meaning of the event, in a sentence.")
    audience = serializers.ChoiceField(
        ["team", "operators", "administrators"],
        help_text=(
            "`team` if webhooks of teams can receive it, too. Other types are for webhooks of the site."
        ),
    )


AUDIENCES = {
    Audience.TEAM: "team",
    Audience.OPERATORS: "operators",
    Audience.ADMINISTRATORS: "administrators",
}
