"""REST API of announcements."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ApiViewSet,
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    not_found_as_invalid,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.scopes import Scope
from portal.fleet.announcements import selectors, services
from portal.fleet.announcements.codes import AnnouncementCode
from portal.fleet.announcements.models import MAX_TEXT, Announcement, AnnouncementKind, AnnouncementState
from portal.fleet.inventory.selectors import pool_by_slug
from portal.people.accounts.policies import require_operator


class AnnouncementSerializer(serializers.ModelSerializer[Announcement]):
    """A short text from operators for all users, or for the users of a pool."""

    pool = serializers.CharField(
        source="pool.slug", allow_null=True, default=None, help_text="Slug of the pool; null for all users."
    )
    state = serializers.ChoiceField(
        AnnouncementState.choices, help_text="State of the announcement, computed from its times."
    )

    class Meta:
        model = Announcement
        fields = ["id", "kind", "text", "pool", "state", "begins_at", "ends_at", "created_at", "updated_at"]
        read_only_fields = fields


class AnnouncementCreateSerializer(StrictSerializer):
    text = serializers.CharField(max_length=MAX_TEXT, help_text="Plain text, up to 500 characters.")
    kind = serializers.ChoiceField(
        AnnouncementKind.choices,
        default=AnnouncementKind.INFORMATION,
        help_text="`information` can be dismissed by each user; `warning` cannot.",
    )
    pool = serializers.CharField(
        max_length=40,
        allow_null=True,
        default=None,
        help_text="Slug of a pool, to reach only users whose teams can use the pool. Default: all users.",
    )
    begins_at = serializers.DateTimeField(
        allow_null=True, default=None, help_text="Time from which it is shown. Default: now."
    )
    ends_at = serializers.DateTimeField(
        allow_null=True, default=None, help_text="Time until which it is shown. Default: no end."
    )

    examples = {"text": "Driver update on Monday, 08:00 UTC.", "kind": "information", "pool": "lab"}


class AnnouncementChangeSerializer(AnnouncementCreateSerializer):
    """Fields to change. Omitted fields stay unchanged."""


@documented(
    list="List announcements",
    of="Lists your current announcements. Operators and auditors see all, also scheduled and ended ones.",
    retrieve="Read an announcement",
)
class AnnouncementViewSet(TaggedViewSet, ReadViewSet):
    observed = frozenset({"state"})
    tag = "notices"
    operation_ids = {
        "list": "listAnnouncements",
        "create": "createAnnouncement",
        "retrieve": "getAnnouncement",
        "partial_update": "updateAnnouncement",
        "destroy": "deleteAnnouncement",
        "cancel": "cancelAnnouncement",
    }
    queryset = Announcement.objects.none()
    serializer_class = AnnouncementSerializer
    scopes = {"GET": Scope.NOTIFICATIONS_READ, "*": Scope.POOLS_WRITE}
    ordering = ("-begins_at", "id")
    missing = AnnouncementCode.NO_SUCH_ANNOUNCEMENT
    lookup_url_kwarg = "announcement_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Announcement]:
        return selectors.announcements_for(self.request.user)

    def get_object(self) -> Announcement:
        return selectors.announcement_by_id(self.request.user, self.kwargs["announcement_id"])

    def _managed(self) -> Announcement:
        require_operator(self.request.user)
        return self.get_object()

    @operation(
        "Create an announcement",
        idempotent=True,
        description="For operators.",
        request=AnnouncementCreateSerializer,
        responses={201: AnnouncementSerializer},
        errors=[400, 409, 415],
    )
    def create(self, request: UserRequest) -> Response:
        require_operator(request.user)
        body = _with_pool(body_of(request, AnnouncementCreateSerializer))
        row = services.create(actor=request.user, **body)
        return self.answer(row, status=201, Location=reverse("api:announcement-detail", args=[row.pk]))

    @operation(
        "Change an announcement",
        description=(
            "For operators. Omitted fields stay unchanged. A new text or kind is shown again to users who "
            "have dismissed the announcement."
        ),
        request=AnnouncementChangeSerializer(partial=True),
        responses={200: AnnouncementSerializer},
        parameters=[IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, announcement_id: UUID) -> Response:
        row = self._managed()
        fields = _with_pool(body_of(request, AnnouncementChangeSerializer, partial=True))
        expected = etags.expected_versions(request)
        return self.answer(
            services.change(actor=request.user, announcement=row, fields=fields, expected=expected)
        )

    @operation(
        "Delete an announcement",
        description="For operators.",
        responses={204: None},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, announcement_id: UUID) -> Response:
        expected = etags.expected_versions(request)
        services.delete(actor=request.user, announcement=self._managed(), expected=expected)
        return Response(status=204)

    @operation(
        "Cancel an announcement",
        description="For operators. Ends it now and keeps it in the list. Idempotent.",
        request=None,
        responses={200: AnnouncementSerializer},
        parameters=[IF_MATCH],
        errors=[404, 412],
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: UserRequest, announcement_id: UUID) -> Response:
        expected = etags.expected_versions(request)
        return self.answer(services.end(actor=request.user, announcement=self._managed(), expected=expected))


def _with_pool(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the pool instead of its slug. Raises `InvalidInput`."""
    if "pool" not in body:
        return body
    with not_found_as_invalid("pool"):
        return {**body, "pool": pool_by_slug(body["pool"]) if body["pool"] else None}


class AnnouncementDismissalViewSet(ApiViewSet):
    tag = "notices"
    operation_ids = {"dismiss": "dismissAnnouncement"}
    queryset = Announcement.objects.none()
    serializer_class = AnnouncementSerializer
    scopes = {"*": Scope.NOTIFICATIONS_WRITE}
    lookup_url_kwarg = "announcement_id"
    lookup_value_converter = "uuid"

    @operation(
        "Dismiss an announcement",
        description="Hides an announcement of kind `information` from your pages. Idempotent.",
        request=None,
        responses={204: None},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def dismiss(self, request: UserRequest, announcement_id: UUID) -> Response:
        row = selectors.announcement_by_id(request.user, announcement_id)
        services.dismiss(actor=request.user, announcement=row)
        return Response(status=204)


router = Router()
router.register("announcements", AnnouncementViewSet, basename="announcement")
router.register("announcements", AnnouncementDismissalViewSet, basename="announcement-dismissal")
urlpatterns = router.urls
