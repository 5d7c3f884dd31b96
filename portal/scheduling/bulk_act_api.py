"""REST API that previews bulk actions on workspaces, and that requests and cancels moves."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.catalog.models import MAX_LIFETIME_H
from portal.common import idempotency
from portal.common.api import ApiView, UserRequest, body_of, operation, routes
from portal.common.hours import HoursField
from portal.common.problem_serializers import ProblemSerializer
from portal.common.problems import document_of
from portal.people.accounts.policies import require_operator
from portal.scheduling import bulk_acts, operator_moves
from portal.scheduling.bulk_acts import Act, Terms
from portal.workspaces import bulk, extending, rows, selectors
from portal.workspaces.api import RETRY_AFTER_S, SCOPES
from portal.workspaces.bulk_api import NOTE, BulkSerializer, BulkView, WorkspacesSerializer
from portal.workspaces.serializers import WorkspaceSerializer
from portal.workspaces.versions import etag_of

NODE = "Name of a node of the workspace's pool. Default: any other node of the pool."


class ManyMoveSerializer(WorkspacesSerializer):
    """The workspaces to move, and their target."""

    node = serializers.CharField(
        max_length=operator_moves.MAX_NODE, default="", allow_blank=True, help_text=NODE
    )
    reason = serializers.CharField(
        max_length=operator_moves.MAX_REASON,
        default="",
        allow_blank=True,
        help_text="Why, in words. Shown to the owners and in the audit log.",
    )

    examples = {**WorkspacesSerializer.examples, "node": "gpu-2", "reason": "gpu-1 gets a new fan."}


class BulkActSerializer(WorkspacesSerializer):
    """An action, and the workspaces to apply it to."""

    act = serializers.ChoiceField(Act.choices, help_text="What to preview.")
    hours = HoursField(
        source="seconds",
        min_value=1 / 60,
        max_value=MAX_LIFETIME_H,
        default=extending.OFFERED_S,
        help_text="Hours to add, for `extend`.",
    )
    node = serializers.CharField(
        max_length=operator_moves.MAX_NODE, default="", allow_blank=True, help_text=f"For `move`: {NODE}"
    )

    examples = {**WorkspacesSerializer.examples, "act": "move", "node": "gpu-2"}


class PlannedActSerializer(serializers.Serializer[Any]):
    """The effect of the action on one workspace, or why the workspace would be skipped."""

    id = serializers.UUIDField(help_text="Id of the workspace, as in the request.")
    name = serializers.CharField(allow_null=True, help_text="Its name; null if you cannot see it.")
    owner = serializers.CharField(allow_null=True, help_text="Its owner; null if you cannot see it.")
    state = serializers.CharField(allow_null=True, help_text="Its state; null if you cannot see it.")
    outcome = serializers.CharField(
        allow_blank=True, help_text="What would happen, as a sentence; empty if it would be skipped."
    )
    problem = ProblemSerializer(
        allow_null=True, help_text="Why it would be skipped; null if the action is possible."
    )


class BulkPlanSerializer(serializers.Serializer[Any]):
    """A result for each workspace, in the order of the request."""

    results = PlannedActSerializer(many=True, help_text="One for each workspace.")


class BulkPreview(ApiView):
    tag = "workspaces"
    operation_ids = {"post": "previewBulkAct"}
    scopes = {"*": SCOPES["GET"]}

    @operation(
        "Preview an action on many workspaces",
        description=(
            f"Takes up to {bulk.MAX_AT_ONCE} workspaces. Uses the action's own checks. Changes nothing."
        ),
        request=BulkActSerializer,
        responses={200: BulkPlanSerializer},
        errors=[400, 415],
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, BulkActSerializer)
        terms = Terms(seconds=body["seconds"], node=body["node"])
        plan = bulk_acts.plan(request.user, Act(body["act"]), body["workspaces"], terms)
        planned = {step.workspace.pk: step for step in (*plan.done, *plan.refused)}
        lines = [_line(request, key, planned.get(key)) for key in dict.fromkeys(body["workspaces"])]
        return Response({"results": lines})


def _line(request: UserRequest, key: Any, planned: bulk_acts.Planned | None) -> dict[str, Any]:
    row = planned.workspace if planned is not None else None
    error = planned.refusal if planned is not None else bulk.not_found()
    return {
        "id": str(key),
        "name": row.name if row is not None else None,
        "owner": row.owner.username if row is not None else None,
        "state": row.state if row is not None else None,
        "outcome": planned.outcome if planned is not None else "",
        "problem": document_of(error, request) if error is not None else None,
    }


class MoveView(BulkView):
    operation_ids = {"post": "moveWorkspaces"}

    @operation(
        "Move many workspaces to other nodes",
        description=(
            "For operators. Asks running workspaces to leave their node: each owner gets a notice, the "
            "workspace stops after the notice of moves, keeps its files and starts on the other node of the "
            f"same pool. Variables in memory are lost. {NOTE} With an `Idempotency-Key`, a repeated request "
            "moves none of them again."
        ),
        request=ManyMoveSerializer,
        responses={202: BulkSerializer},
        parameters=[idempotency.PARAMETER],
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, ManyMoveSerializer)
        results = operator_moves.request(
            actor=request.user, **body, idempotency_key=idempotency.key_of(request)
        )
        return self.answer(request, results)


CANCEL_NOTE = (
    "For operators, until the workspace stops for its move. It stays where it is, and its owner is notified. "
    "Moves for a waiting request are cancelled together, by dismissing their proposal. Idempotent."
)


class CancelMoveView(ApiView):
    tag = "workspaces"
    operation_ids = {"post": "cancelWorkspaceMove"}
    scopes = SCOPES

    @operation(
        "Cancel the move of a workspace",
        description=CANCEL_NOTE,
        request=None,
        responses={200: WorkspaceSerializer},
        parameters=[OpenApiParameter("workspace_id", UUID, OpenApiParameter.PATH)],
        errors=[404, 409],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        selectors.workspace_by_id(request.user, workspace_id)
        operator_moves.cancel(actor=request.user, workspace_id=workspace_id)
        row = rows.read_by_id(request.user, workspace_id)
        return Response(WorkspaceSerializer(row).data, headers={"ETag": etag_of(row)})


class CancelMovesView(BulkView):
    operation_ids = {"post": "cancelWorkspaceMoves"}

    @operation(
        "Cancel the moves of many workspaces",
        description=f"{CANCEL_NOTE} {NOTE}",
        request=WorkspacesSerializer,
        responses={202: BulkSerializer},
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        require_operator(request.user)
        return self.act_on_each(
            request, lambda key: operator_moves.cancel(actor=request.user, workspace_id=key)
        )


urlpatterns = [
    *routes("workspaces/preview", BulkPreview, "workspaces-preview"),
    *routes("workspaces/move", MoveView, "workspaces-move"),
    *routes("workspaces/move/cancel", CancelMovesView, "workspaces-move-cancel"),
    *routes("workspaces/<uuid:workspace_id>/move/cancel", CancelMoveView, "workspace-move-cancel"),
]
