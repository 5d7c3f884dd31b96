"""Serialization of audit log entries, shared by REST, exports and streams."""

from __future__ import annotations

from rest_framework import serializers

from portal.common.events.models import Event


class AuditEntrySerializer(serializers.ModelSerializer[Event]):
    """An audit log entry. Entries of actions by the portal itself have no request origin."""

    actor = serializers.CharField(source="actor_label", help_text="Display name of the actor.")
    action = serializers.CharField(source="kind", help_text="Code of the action.")
    reason = serializers.CharField(source="why", help_text="Reason, if known.")
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    workspace = serializers.UUIDField(
        source="workspace_id", allow_null=True, help_text="Id of the workspace."
    )

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
