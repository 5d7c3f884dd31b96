"""REST views of reservations."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
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
from portal.common.etags import IF_MATCH
from portal.common.filtering import MomentFilter
from portal.common.scopes import Scope
from portal.quota.limits import policies
from portal.quota.limits.selectors import limits
from portal.quota.reservations import permissions, selectors, services, slots
from portal.quota.reservations.models import BookingPermission, Reservation, ReservationState

SCOPES = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_WRITE}
DECIDING = {"*": Scope.QUOTAS_DECIDE}


class ReservationSerializer(serializers.ModelSerializer[Reservation]):
    """Capacity for a team and a period. Title and note are empty if you cannot see the team."""

    team = serializers.CharField(source="team.slug")
    state = serializers.ChoiceField(ReservationState.choices)
    title = serializers.SerializerMethodField(help_text="Purpose of the reservation.")
    note = serializers.SerializerMethodField()
    amounts = serializers.SerializerMethodField(
        help_text="Base units by resource, such as 4000 of `gpu:h100`."
    )

    class Meta:
        model = Reservation
        fields = ["id", "team", "title", "amounts", "starts_at", "ends_at", "state", "note", "created_at"]
        read_only_fields = fields

    def _can_view_team(self, row: Reservation) -> bool:
        return policies.may_view_team(self.context["actor"], row.team)

    def get_title(self, row: Reservation) -> str:
        return row.title if self._can_view_team(row) else ""

    def get_note(self, row: Reservation) -> str:
        return row.note if self._can_view_team(row) else ""

    def get_amounts(self, row: Reservation) -> dict[str, int]:
        return slots.subtract_models_from_total(row.amounts)


class ReservationWriteSerializer(StrictSerializer):
    title = serializers.CharField(max_length=80, help_text="Purpose of the reservation.")
    amounts = serializers.DictField(
        child=serializers.IntegerField(min_value=1),
        help_text='Amount by resource, in base units, such as `{"gpu:h100": 2000}`.',
    )
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()

    examples = {"title": "Workshop", "amounts": {"gpu:h100": 2000}}


class ReservationCreateSerializer(ReservationWriteSerializer):
    team = serializers.CharField(max_length=40)
    note = serializers.CharField(required=False, allow_blank=True, default="", max_length=2000)


class DenialSerializer(StrictSerializer):
    note = serializers.CharField(max_length=2000, help_text="Note for the requester.")


class ReservationFilter(filters.FilterSet):
    team = filters.CharFilter(field_name="team__slug", label="Slug of the team.")
    state = filters.ChoiceFilter(choices=ReservationState.choices, label="Only reservations in this state.")
    starts_before = MomentFilter(
        field_name="starts_at", lookup_expr="lt", label="Only reservations that start before this time."
    )
    ends_after = MomentFilter(
        field_name="ends_at", lookup_expr="gt", label="Only reservations that end after this time."
    )


@documented(
    list="List reservations",
    of="Lists booked reservations and requests of your teams. Operators and approvers see all.",
    retrieve="Read a reservation",
)
class ReservationViewSet(ReadViewSet):
    tag = "queue"
    operation_ids = {
        "list": "listReservations",
        "create": "createReservation",
        "retrieve": "getReservation",
        "update": "setReservation",
        "approve": "approveReservation",
        "cancel": "cancelReservation",
        "deny": "denyReservation",
    }
    queryset = Reservation.objects.none()
    serializer_class = ReservationSerializer
    filterset_class = ReservationFilter
    scopes = SCOPES
    ordering = ("starts_at", "id")
    lookup_url_kwarg = "reservation_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Reservation]:
        return selectors.reservations_for(self.request.user)

    def get_object(self) -> Reservation:
        return selectors.reservation_by_id(self.request.user, self.kwargs["reservation_id"])

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "actor": self.request.user}

    def answer(self, row: Reservation, *, status: int = 200, **headers: str) -> Response:
        answered = super().answer(row, status=status, **headers)
        # The ETag depends on the title, which must not be guessable.
        if policies.may_view_team(self.request.user, row.team):
            etags.with_etag(answered, row)
        return answered

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.answer(self.get_object())

    @operation(
        "Request a reservation",
        idempotent=True,
        description=(
            "For owners of the team, approvers and operators. Requires approval unless the user has a "
            "booking permission."
        ),
        request=ReservationCreateSerializer,
        responses={201: ReservationSerializer},
        errors=[400, 404, 409, 415],
        examples=[
            OpenApiExample(
                "4 H100 for an afternoon",
                {
                    "team": "vision", "title": "Paper", "amounts": {"gpu:h100": 4000},
                    "starts_at": "2030-01-31T12:00:00Z", "ends_at": "2030-01-31T18:00:00Z",
                },
                request_only=True,
            )
        ],
    )  # fmt: skip
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, ReservationCreateSerializer)
        with not_found_as_invalid("team"):
            team = limits.team_for(request.user, body.pop("team"))
        body["amounts"] = slots.add_models_to_total(body["amounts"])
        reservation = services.request(actor=request.user, team=team, **body)
        location = reverse("api:reservation-detail", args=[reservation.pk])
        return self.answer(reservation, status=201, Location=location)

    @operation(
        "Replace a reservation",
        description=(
            "Owners of the team can change a request that waits for approval, and reduce a booked "
            "reservation."
        ),
        request=ReservationWriteSerializer,
        responses={200: ReservationSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def update(self, request: UserRequest, reservation_id: UUID) -> Response:
        body = body_of(request, ReservationWriteSerializer)
        body["amounts"] = slots.add_models_to_total(body["amounts"])
        expected = etags.expected_versions(request)
        row = services.change(actor=request.user, reservation_id=reservation_id, expected=expected, **body)
        return self.answer(row)

    @operation(
        "Cancel a reservation",
        description="Frees the capacity immediately. Idempotent.",
        request=None,
        responses={200: ReservationSerializer},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, reservation_id: UUID) -> Response:
        expected = etags.expected_versions(request)
        return self.answer(
            services.cancel(actor=request.user, reservation_id=reservation_id, expected=expected)
        )

    @operation(
        "Approve a reservation",
        description=(
            "For approvers and operators, except for reservations that they requested or changed themselves."
        ),
        request=None,
        responses={200: ReservationSerializer},
        parameters=[IF_MATCH],
        errors=[404, 409, 412],
    )
    @action(detail=True, methods=["post"], scopes=DECIDING)
    def approve(self, request: UserRequest, reservation_id: UUID) -> Response:
        expected = etags.expected_versions(request)
        return self.answer(
            services.approve(actor=request.user, reservation_id=reservation_id, expected=expected)
        )

    @operation(
        "Deny a reservation",
        description="For approvers and operators. Requires a note.",
        request=DenialSerializer,
        responses={200: ReservationSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    @action(detail=True, methods=["post"], scopes=DECIDING)
    def deny(self, request: UserRequest, reservation_id: UUID) -> Response:
        body = body_of(request, DenialSerializer)
        expected = etags.expected_versions(request)
        return self.answer(
            services.deny(actor=request.user, reservation_id=reservation_id, expected=expected, **body)
        )


class BookingPermissionSerializer(serializers.ModelSerializer[BookingPermission]):
    """Permission to book without approval: for a team, or (null) for every team that the user is not in."""

    username = serializers.CharField(source="user.username")
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    granted_by = serializers.CharField(
        source="granted_by.username", help_text="Username of the user who granted it."
    )

    class Meta:
        model = BookingPermission
        fields = ["id", "username", "team", "granted_by", "created_at"]
        read_only_fields = fields


class PermitSerializer(StrictSerializer):
    username = serializers.CharField(max_length=32, help_text="Username of the holder, other than yourself.")
    team = serializers.CharField(
        max_length=40,
        required=False,
        help_text="Slug of the team. Default: every team that the user is not in.",
    )


@documented(
    list="List booking permissions",
    of="Lists your own permissions. Approvers and operators see all.",
)
class BookingPermissionViewSet(ListViewSet):
    tag = "queue"
    operation_ids = {
        "list": "listBookingPermissions",
        "create": "createBookingPermission",
        "revoke": "revokeBookingPermission",
    }
    queryset = BookingPermission.objects.none()
    serializer_class = BookingPermissionSerializer
    scopes = {"GET": Scope.QUOTAS_READ, "*": Scope.QUOTAS_DECIDE}
    ordering = ("created_at", "id")
    lookup_url_kwarg = "permission_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[BookingPermission]:
        return permissions.permissions_for(self.request.user)

    @operation(
        "Create a booking permission",
        description=(
            "For approvers, but not for themselves. The holder can book without approval. Idempotent."
        ),
        request=PermitSerializer,
        responses={201: BookingPermissionSerializer},
        located=False,
        errors=[400, 404, 415],
    )
    def create(self, request: UserRequest) -> Response:
        body = body_of(request, PermitSerializer)
        # Check first: name lookups would reveal teams and users.
        permissions.require_grant(request.user)
        with not_found_as_invalid("team"):
            team = limits.team_for(request.user, body["team"]) if "team" in body else None
        permission = permissions.permit_booking(actor=request.user, username=body["username"], team=team)
        return self.answer(permission, status=201)

    @operation(
        "Revoke a booking permission",
        description="For approvers and the holder. Existing reservations stay.",
        request=None,
        responses={204: None},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, permission_id: UUID) -> Response:
        permissions.end(actor=request.user, permission_id=permission_id)
        return Response(status=204)


router = Router()
router.register("reservations", ReservationViewSet)
router.register("booking-permissions", BookingPermissionViewSet, basename="booking-permission")
urlpatterns = router.urls
