"""Filters of the audit log, shared by REST, the page and exports."""

from __future__ import annotations

import contextlib
from uuid import UUID

from django.db.models import Q, QuerySet

from portal.common.api import filters
from portal.common.events.models import Event, EventTarget
from portal.common.filtering import MomentFilter


class AuditFilter(filters.FilterSet):
    actor = filters.CharFilter(field_name="actor__username", label="Username of the actor.", max_length=150)
    action = filters.CharFilter(
        method="filter_action",
        label="An action such as `user.deactivated`, or all of a subject such as `user.`.",
        max_length=60,
    )
    since = MomentFilter(field_name="at", lookup_expr="gte", label="Only entries at or after this time.")
    until = MomentFilter(field_name="at", lookup_expr="lt", label="Only entries before this time.")
    object = filters.CharFilter(
        method="filter_object",
        label=(
            "Only entries about this subject: a team, a user, or the id of a workspace, device, node or "
            "request."
        ),
        max_length=255,
    )
    request_id = filters.CharFilter(label="Id of the HTTP request that caused the entry.", max_length=64)

    def filter_action(self, queryset: QuerySet[Event], _name: str, value: str) -> QuerySet[Event]:
        return queryset.filter(kind__startswith=value) if value.endswith(".") else queryset.filter(kind=value)

    def filter_object(self, queryset: QuerySet[Event], _name: str, value: str) -> QuerySet[Event]:
        event_ids = EventTarget.objects.filter(key=value).values("event")
        condition = Q(pk__in=event_ids) | Q(team__slug=value) | Q(pool__slug=value) | Q(workspace__name=value)
        # Deleted teams have another slug, which begins with the former one.
        condition |= Q(team__slug__startswith=f"{value[:31]}_", team__deleted_at__isnull=False)
        with contextlib.suppress(ValueError):
            condition |= Q(workspace=UUID(value))
        return queryset.filter(condition)
