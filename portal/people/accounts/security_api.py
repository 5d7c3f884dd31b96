"""REST API of a user's own security events."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers

from portal.common.api import ListViewSet, Router, documented
from portal.common.events.models import Event
from portal.common.scopes import Scope
from portal.people.accounts import security_events


class SecurityEventSerializer(serializers.ModelSerializer[Event]):
    """An event about your account. Actions of other users have no address, program or token."""

    actor = serializers.CharField(
        source="actor_label",
        help_text="Who did it: you, an administrator, an owner of a team, or `Somebody`.",
    )
    action = serializers.CharField(source="kind", help_text="Code of the action.")
    message = serializers.CharField(help_text="What happened, in words that follow the name of the actor.")

    class Meta:
        model = Event
        fields = ["id", "at", "actor", "action", "message", "address", "user_agent", "token"]
        read_only_fields = fields

    def to_representation(self, instance: Event) -> dict[str, Any]:
        origin = security_events.origin_of(instance, self.context["request"].user)
        return {**super().to_representation(instance), **asdict(origin)}


@documented(
    list="List your security events",
    of=(
        "Successful and failed sign-ins, ended sessions, and changes to your password, address, second "
        "factors, tokens, linked sign-in providers, roles and memberships, including changes by "
        "administrators. Newest first."
    ),
)
class SecurityEventViewSet(ListViewSet):
    tag = "users"
    operation_ids = {"list": "listMySecurityEvents"}
    queryset = Event.objects.none()
    serializer_class = SecurityEventSerializer
    scopes = {"GET": Scope.AUDIT_READ, "*": Scope.AUDIT_READ}
    ordering = ("-id",)

    def get_queryset(self) -> QuerySet[Event]:
        return security_events.security_events_of(self.request.user)


router = Router()
router.register("me/security-events", SecurityEventViewSet, basename="security-event")
urlpatterns = router.urls
