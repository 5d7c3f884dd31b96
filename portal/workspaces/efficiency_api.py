"""REST API of GPU efficiency."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, UserRequest, operation, routes
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.wording import message_of, next_action_of
from portal.common.scopes import Scope
from portal.workspaces import selectors
from portal.workspaces.efficiency import efficiency_of


class EfficiencyHintSerializer(serializers.Serializer[Any]):
    """The most useful change."""

    message = serializers.CharField()
    next_action = serializers.CharField()
    reason = ReasonSerializer(help_text="Machine-readable form of `message`.")


class EfficiencySerializer(serializers.Serializer[Any]):
    """GPU efficiency of a workspace since its start, over at most 7 days."""

    since = serializers.DateTimeField(
        allow_null=True, help_text="Start of the period; null if the workspace has no whole GPU now."
    )
    until = serializers.DateTimeField(
        allow_null=True, help_text="End of the period; null if the workspace has no whole GPU now."
    )
    used = serializers.FloatField(
        allow_null=True,
        help_text="Used share of the measured GPU time, from 0 to 1; null if too little was measured.",
    )
    measured = serializers.FloatField(help_text="Measured share of the time, from 0 to 1.")
    hint = EfficiencyHintSerializer(allow_null=True, help_text="Suggested change; null for none.")


class WorkspaceEfficiency(ApiView):
    """GPU efficiency of a workspace."""

    tag = "workspaces"
    operation_ids = {"get": "getWorkspaceEfficiency"}
    scopes = {"*": Scope.WORKSPACES_READ}

    @operation(
        "Read the GPU efficiency of a workspace",
        description=(
            "Based on samples of whole GPUs. Shares and MIG instances have no samples of their own. "
            "Includes up to 1 hint if there are enough samples."
        ),
        responses={200: EfficiencySerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[404],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        result = efficiency_of(selectors.workspace_by_id(request.user, workspace_id))
        if result is None:
            return Response({"since": None, "until": None, "used": None, "measured": 0.0, "hint": None})
        hint = result.hint and {
            "message": message_of(result.hint),
            "next_action": next_action_of(result.hint),
            "reason": result.hint.as_json(),
        }
        body = {
            "since": result.since,
            "until": result.until,
            "used": None if result.used is None else round(result.used, 4),
            "measured": round(result.measured, 4),
            "hint": hint,
        }
        return Response(EfficiencySerializer(body).data)


urlpatterns = routes("workspaces/<uuid:workspace_id>/efficiency", WorkspaceEfficiency, "workspace-efficiency")
