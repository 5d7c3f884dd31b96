"""The audit log over REST: for administrators."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.common.api import ListViewSet, Router, documented
from portal.common.scopes import Scope
from portal.events import selectors
from portal.events.audit_filters import AuditFilter
from portal.events.models import Event


class AuditEntrySerializer(serializers.ModelSerializer[Event]):
    """Who did what, when, why and from where. What the portal did by itself comes from nowhere."""

    actor = serializers.CharField(source="actor_label")
    action = serializers.CharField(source="kind")
    reason = serializers.CharField(source="why", help_text="Why, where that is known.")
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    workspace = serializers.UUIDField(source="workspace_id", allow_null=True)

    class Meta:
        model = Event
        fields = [
            "id",
            "at",
            "actor",
            "action",
            "message",
            "reason",
            "team",
            "workspace",
            "data",
            "address",
            "user_agent",
            "request_id",
            "token",
        ]
        read_only_fields = fields


@documented(list="Read the audit log", of="Newest first. For administrators.")
class AuditEntryViewSet(ListViewSet):
    queryset = Event.objects.none()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter
    scopes = {"GET": Scope.AUDIT_READ, "*": Scope.AUDIT_READ}
    ordering = ("-id",)

    def get_queryset(self) -> Any:
        return selectors.entries_for(self.request.user)


router = Router()
router.register("audit-entries", AuditEntryViewSet, basename="audit-entry")
urlpatterns = router.urls
