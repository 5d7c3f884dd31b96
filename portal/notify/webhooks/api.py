"""REST API of webhooks and deliveries."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiView,
    ApiViewSet,
    IsSignedIn,
    ListViewSet,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
    routes,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.events.event_types import Audience, types_for
from portal.common.scopes import Scope
from portal.notify.webhooks import selectors, services
from portal.notify.webhooks.codes import WebhookCode
from portal.notify.webhooks.models import Delivery, DeliveryState, Endpoint
from portal.notify.webhooks.serializers import (
    AUDIENCES,
    DeliverySerializer,
    EventTypeSerializer,
    NewWebhookSerializer,
    WebhookChangeSerializer,
    WebhookCreateSerializer,
    WebhookSerializer,
)
from portal.people.accounts.models import Team

SCOPES = {"GET": Scope.WEBHOOKS_READ, "*": Scope.WEBHOOKS_WRITE}
NO_STORE = {"Cache-Control": "no-store"}


class EventTypes(ApiView):
    """Event types available to the user: of teams, and of the site for operators and administrators."""

    tag = "notices"
    operation_ids = {"get": "listWebhookEventTypes"}
    permission_classes = [IsSignedIn]

    @operation("List webhook event types", responses={200: EventTypeSerializer(many=True)})
    def get(self, request: UserRequest) -> Response:
        user = request.user
        audience = Audience.ADMINISTRATORS if user.administers else Audience.OPERATORS
        types = types_for(audience if user.operates else Audience.TEAM)
        rows = [
            {
                "name": event_type.name,
                "summary": event_type.summary,
                "audience": AUDIENCES[event_type.audience],
            }
            for event_type in types
        ]
        return Response(EventTypeSerializer(rows, many=True).data)


class _Webhooks(ApiViewSet):
    """Shared base of team and site webhooks."""

    tag = "notices"
    queryset = Endpoint.objects.none()
    serializer_class = WebhookSerializer
    scopes = SCOPES
    ordering = ("created_at", "id")
    missing = WebhookCode.NO_SUCH_WEBHOOK

    def _owning_team(self) -> Team | None:
        return None

    def get_queryset(self) -> QuerySet[Endpoint]:
        return selectors.endpoints_of(self.request.user, self._owning_team())

    def _create(self, request: UserRequest) -> Response:
        created = services.create(
            actor=request.user, team=self._owning_team(), **body_of(request, WebhookCreateSerializer)
        )
        location = reverse("api:webhook-detail", args=[created.endpoint.pk])
        return _with_secret(created, status=201, Location=location)


def _with_secret(with_secret: services.WebhookWithSecret, *, status: int = 200, **headers: str) -> Response:
    data = NewWebhookSerializer(with_secret.endpoint, context={"secret": with_secret.secret}).data
    tag = {"ETag": etags.etag_of(with_secret.endpoint)}
    return Response(data, status=status, headers={**tag, **NO_STORE, **headers})


@documented(
    list="List webhooks of the site",
    of="For operators and auditors. `teams/{slug}/webhooks` lists those of a team.",
    retrieve="Read a webhook",
)
class WebhookViewSet(TaggedViewSet, _Webhooks, ReadViewSet):
    operation_ids = {
        "list": "listWebhooks",
        "create": "createWebhook",
        "retrieve": "getWebhook",
        "partial_update": "updateWebhook",
        "destroy": "deleteWebhook",
        "rotate_secret": "rotateWebhookSecret",
        "test": "testWebhook",
    }
    lookup_url_kwarg = "webhook_id"
    lookup_value_converter = "uuid"

    def get_object(self) -> Endpoint:
        return selectors.endpoint_by_id(self.request.user, self.kwargs["webhook_id"])

    def managed(self) -> Endpoint:
        return selectors.managed_endpoint(self.request.user, self.kwargs["webhook_id"])

    @operation(
        "Create a webhook of the site",
        idempotent=True,
        description=(
            "For operators. Event types about accounts are for administrators. The signing secret is shown "
            "only once."
        ),
        request=WebhookCreateSerializer,
        responses={201: NewWebhookSerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        return self._create(request)

    @operation(
        "Change a webhook",
        description="For webhooks of the site or a team. Omitted fields stay unchanged.",
        request=WebhookChangeSerializer,
        responses={200: WebhookSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def partial_update(self, request: UserRequest, webhook_id: UUID) -> Response:
        body = body_of(request, WebhookChangeSerializer)
        expected = etags.expected_versions(request)
        row = services.change(actor=request.user, endpoint=self.managed(), expected=expected, **body)
        return self.answer(row)

    @operation(
        "Delete a webhook",
        description="Also deletes its delivery log.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, webhook_id: UUID) -> Response:
        services.delete(
            actor=request.user, endpoint=self.managed(), expected=etags.expected_versions(request)
        )
        return Response(status=204)

    @operation(
        "Test a webhook",
        idempotent=True,
        description="Sends a test event once, in the background. The delivery shows the response.",
        request=None,
        responses={202: DeliverySerializer},
        retry_after_s=2,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def test(self, request: UserRequest, webhook_id: UUID) -> Response:
        delivery = services.send_test(actor=request.user, endpoint=self.managed())
        headers = {"Location": _location_of(delivery)}
        return Response(DeliverySerializer(delivery).data, status=202, headers=headers)

    @operation(
        "Rotate the secret of a webhook",
        idempotent=True,
        description="The new secret is shown only once. For 1 day, both secrets sign.",
        request=None,
        responses={200: NewWebhookSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"], url_path="rotate-secret")
    def rotate_secret(self, request: UserRequest, webhook_id: UUID) -> Response:
        return _with_secret(services.rotate_secret(actor=request.user, endpoint=self.managed()))


@documented(
    list="List webhooks of a team", of="For owners of the team, operators and auditors.", errors=[404]
)
class TeamWebhookViewSet(_Webhooks, ListViewSet):
    operation_ids = {"list": "listTeamWebhooks", "create": "createTeamWebhook"}

    def _owning_team(self) -> Team:
        return selectors.team_of(self.request.user, self.kwargs["slug"])

    @operation(
        "Create a webhook of a team",
        idempotent=True,
        description="For owners of the team and operators. The signing secret is shown only once.",
        request=WebhookCreateSerializer,
        responses={201: NewWebhookSerializer},
        errors=[400, 404, 409, 415],
    )
    def create(self, request: UserRequest, slug: str) -> Response:
        return self._create(request)


class DeliveryFilter(filters.FilterSet):
    state = filters.ChoiceFilter(choices=DeliveryState.choices, label="Only those in this state.")
    type = filters.CharFilter(label="Only this event type.", max_length=60)


@documented(
    list="List the deliveries of a webhook",
    of="Newest first, with all attempts. Deliveries are kept for some days.",
    retrieve="Read a delivery",
    errors=[404],
)
class DeliveryViewSet(ReadViewSet):
    observed = frozenset({"disabled_at", "failing_since", "previous_secret_until"})
    tag = "notices"
    operation_ids = {
        "list": "listWebhookDeliveries",
        "retrieve": "getWebhookDelivery",
        "redeliver": "redeliverWebhook",
    }
    queryset = Delivery.objects.none()
    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilter
    scopes = SCOPES
    ordering = ("-created_at", "-id")
    missing = WebhookCode.NO_SUCH_DELIVERY
    lookup_url_kwarg = "delivery_id"
    lookup_value_converter = "uuid"

    def _endpoint(self) -> Endpoint:
        return selectors.endpoint_by_id(self.request.user, self.kwargs["webhook_id"])

    def get_queryset(self) -> QuerySet[Delivery]:
        return selectors.deliveries_of(self._endpoint())

    def get_object(self) -> Any:
        return selectors.delivery_by_id(self._endpoint(), self.kwargs["delivery_id"])

    @operation(
        "Redeliver a delivery",
        idempotent=True,
        description="Sends it again in the background, with the same `webhook-id`.",
        request=None,
        responses={202: DeliverySerializer},
        retry_after_s=2,
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def redeliver(self, request: UserRequest, webhook_id: UUID, delivery_id: UUID) -> Response:
        endpoint = selectors.managed_endpoint(request.user, webhook_id)
        delivery = selectors.delivery_by_id(endpoint, delivery_id)
        delivery_row = services.redeliver(actor=request.user, delivery=delivery)
        return self.answer(delivery_row, status=202, Location=_location_of(delivery_row))


def _location_of(delivery: Delivery) -> str:
    return reverse("api:webhook-delivery-detail", args=[delivery.endpoint_id, delivery.pk])


router = Router()
router.register("webhooks", WebhookViewSet, basename="webhook")
router.register("teams/<slug:slug>/webhooks", TeamWebhookViewSet, basename="team-webhook")
router.register("webhooks/<uuid:webhook_id>/deliveries", DeliveryViewSet, basename="webhook-delivery")
urlpatterns = [*routes("webhook-event-types", EventTypes, "webhook-event-types"), *router.urls]
