"""REST API of bulk actions: each workspace is stopped or deleted as if requested alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.db import transaction
from django.urls import reverse
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.errors import PortalError
from portal.common.problem_serializers import ProblemSerializer
from portal.common.problems import document_of
from portal.workspaces import rows, selectors, services
from portal.workspaces.api import RETRY_AFTER_S, SCOPES
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.rows import WorkspaceRow
from portal.workspaces.serializers import WorkspaceSerializer

MAX_AT_ONCE = 100
NOTE = (
    f"Takes up to {MAX_AT_ONCE} workspaces, in the given order. A failure does not affect the others. "
    "Returns a result for each. Its `status` is the HTTP status that a single request would get."
)


class IdField(serializers.UUIDField):
    """An id as text. Numbers and booleans are not accepted, as the OpenAPI document says."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class WorkspacesSerializer(StrictSerializer):
    """The workspaces to act on."""

    workspaces = serializers.ListField(
        child=IdField(),
        min_length=1,
        max_length=MAX_AT_ONCE,
        help_text="Ids of the workspaces. Duplicates are ignored.",
    )

    examples = {"workspaces": ["0b3e5c1e-2f7b-4c39-9d2e-0d6b6a9a5f10"]}


class BulkResultSerializer(serializers.Serializer[Any]):
    """The result for one workspace: its new state, or why the request failed."""

    id = serializers.UUIDField(help_text="Id of the workspace, as in the request.")
    status = serializers.IntegerField(
        help_text="HTTP status that a single request would get, such as 202 or 404."
    )
    workspace = WorkspaceSerializer(
        allow_null=True, help_text="Current workspace; null if the request failed or the workspace is gone."
    )
    problem = ProblemSerializer(allow_null=True, help_text="Why the request failed; null on success.")


class BulkSerializer(serializers.Serializer[Any]):
    """A result for each workspace, in the order of the request."""

    results = BulkResultSerializer(many=True, help_text="Results, one for each workspace.")


class BulkView(ApiView):
    tag = "workspaces"
    scopes = SCOPES
    act: ClassVar[Callable[..., Workspace]]

    def answer(self, request: UserRequest) -> Response:
        """Act on each workspace in its own transaction, so that locks are held only briefly."""
        wanted = list(dict.fromkeys(body_of(request, WorkspacesSerializer)["workspaces"]))
        problems: dict[Any, dict[str, Any]] = {}
        for workspace_id in wanted:
            try:
                selectors.workspace_by_id(request.user, workspace_id)
                with transaction.atomic():
                    type(self).act(actor=request.user, workspace_id=workspace_id)
            except PortalError as error:
                problems[workspace_id] = document_of(error, request)
        done = [key for key in wanted if key not in problems]
        visible = selectors.rows_for(request.user).filter(pk__in=done)
        shown = {row.pk: row for row in rows.read(list(visible.values_list("pk", flat=True)))}
        results = [self._result(key, shown.get(key), problems.get(key)) for key in wanted]
        headers = {"Location": reverse("api:workspace-list")}
        return Response({"results": results}, status=202, headers=headers)

    def _result(
        self, workspace_id: Any, row: WorkspaceRow | None, problem: dict[str, Any] | None
    ) -> dict[str, Any]:
        left = row is not None and row.state != State.TERMINATED
        return {
            "id": str(workspace_id),
            "status": problem["status"] if problem else 202 if left else 204,
            "workspace": WorkspaceSerializer(row).data if left else None,
            "problem": problem,
        }


class StopView(BulkView):
    operation_ids = {"post": "stopWorkspaces"}
    act = services.stop

    @operation(
        "Stop many workspaces",
        description=f"Files are kept. {NOTE}",
        request=WorkspacesSerializer,
        responses={202: BulkSerializer},
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        return self.answer(request)


class DeleteView(BulkView):
    operation_ids = {"post": "deleteWorkspaces"}
    act = services.delete

    @operation(
        "Delete many workspaces",
        description=f"Home folders are kept. {NOTE}",
        request=WorkspacesSerializer,
        responses={202: BulkSerializer},
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        return self.answer(request)


urlpatterns = [
    *routes("workspaces/stop", StopView, "workspaces-stop"),
    *routes("workspaces/delete", DeleteView, "workspaces-delete"),
]
