"""REST API of the user's own notices."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import ListViewSet, Router, UserRequest, documented, filters, operation
from portal.common.events import selectors, services
from portal.common.events.models import Notification
from portal.common.scopes import Scope

SCOPES = {"GET": Scope.NOTIFICATIONS_READ, "*": Scope.NOTIFICATIONS_WRITE}


class NotificationSerializer(serializers.ModelSerializer[Notification]):
    """A notice to you. `url` is the portal path of the next action, or empty."""

    class Meta:
        model = Notification
        fields = ["id", "at", "kind", "title", "body", "url", "read_at", "repeats"]
        read_only_fields = fields


class ReadSerializer(serializers.Serializer[Any]):
    """Number of notices marked as read."""

    read = serializers.IntegerField(help_text="Number of notices that were unread before.")


class NotificationFilter(filters.FilterSet):
    unread = filters.BooleanFilter(
        field_name="read_at", lookup_expr="isnull", label="Only unread notices, or only read ones."
    )
    kind = filters.CharFilter(label="Only this kind.", max_length=60)


@documented(list="List your notices")
class NotificationViewSet(ListViewSet):
    tag = "notices"
    operation_ids = {
        "list": "listNotifications",
        "read": "markNotificationRead",
        "read_all": "markAllNotificationsRead",
    }
    queryset = Notification.objects.none()
    serializer_class = NotificationSerializer
    filterset_class = NotificationFilter
    scopes = SCOPES
    ordering = ("-id",)
    lookup_url_kwarg = "notification_id"
    lookup_value_converter = "int"

    def get_queryset(self) -> QuerySet[Notification]:
        return selectors.notifications_of(self.request.user)

    @operation(
        "Mark a notice as read",
        description="Idempotent.",
        responses={200: NotificationSerializer},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def read(self, request: UserRequest, notification_id: int) -> Response:
        selectors.notification_by_id(request.user, notification_id)
        services.mark_read(actor=request.user, notification_id=notification_id)
        return self.answer(selectors.notification_by_id(request.user, notification_id))

    @operation(
        "Mark all your notices as read",
        responses={200: ReadSerializer},
    )
    @action(detail=False, methods=["post"], url_path="read")
    def read_all(self, request: UserRequest) -> Response:
        return Response({"read": services.mark_read(actor=request.user)})


router = Router()
router.register("notifications", NotificationViewSet)
urlpatterns = router.urls
