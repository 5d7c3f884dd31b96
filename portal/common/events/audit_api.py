"""REST API of the audit log, for administrators."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, ListViewSet, Router, UserRequest, documented, operation, routes
from portal.common.events import audit_stream, selectors
from portal.common.events.audit_entries import AuditEntrySerializer
from portal.common.events.audit_filters import AuditFilter
from portal.common.events.models import Event
from portal.common.scopes import Scope


@documented(list="Read the audit log", of="Newest first. For administrators.")
class AuditEntryViewSet(ListViewSet):
    tag = "notices"
    operation_ids = {"list": "listAuditEntries"}
    queryset = Event.objects.none()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter
    scopes = {"GET": Scope.AUDIT_READ, "*": Scope.AUDIT_READ}
    ordering = ("-id",)

    def get_queryset(self) -> Any:
        return selectors.entries_for(self.request.user)


class AuditStreamSerializer(serializers.Serializer[Any]):
    """A receiver of the audit log and its progress."""

    name = serializers.CharField(help_text="`syslog` or `webhook`.")
    target = serializers.CharField(help_text="Address of the receiver, without secret parts.")
    last_id = serializers.IntegerField(help_text="Id of the last delivered entry.")
    waiting = serializers.IntegerField(help_text="Number of entries not delivered yet.")
    sent_at = serializers.DateTimeField(
        allow_null=True, help_text="When the receiver last accepted an entry; null before the first."
    )
    last_error = serializers.CharField(allow_blank=True, help_text="Code of the last error; empty for none.")
    failed_at = serializers.DateTimeField(
        allow_null=True, help_text="When the receiver last rejected an entry; null if never."
    )


class AuditStreams(ApiView):
    """Progress of audit log streaming, for administrators."""

    tag = "notices"
    operation_ids = {"get": "listAuditStreams"}
    scopes = {"GET": Scope.AUDIT_READ, "*": Scope.AUDIT_READ}

    @operation(
        "Read the progress of audit log forwarding",
        description="For administrators. The list is empty if no receiver is configured.",
        responses={200: AuditStreamSerializer(many=True)},
    )
    def get(self, request: UserRequest) -> Response:
        selectors.entries_for(request.user)
        return Response(AuditStreamSerializer(audit_stream.receiver_progress(), many=True).data)


router = Router()
router.register("audit-entries", AuditEntryViewSet, basename="audit-entry")
urlpatterns = [*routes("audit-streams", AuditStreams, "audit-streams"), *router.urls]
