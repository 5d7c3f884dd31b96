"""REST API of bulk actions on workspaces (`bulk`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.urls import reverse
from rest_framework import serializers
from rest_framework.response import Response

from portal.common import idempotency
from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.errors import PortalError
from portal.common.problem_serializers import ProblemSerializer
from portal.common.problems import document_of
from portal.workspaces import bulk, extending, owner_messages, rows, selectors, services
from portal.workspaces.api import RETRY_AFTER_S, SCOPES
from portal.workspaces.lifecycle import State
from portal.workspaces.order_serializers import ExtendSerializer
from portal.workspaces.rows import WorkspaceRow
from portal.workspaces.serializers import WorkspaceSerializer

NOTE = (
    f"Takes up to {bulk.MAX_AT_ONCE} workspaces, in the given order. A failure does not affect the others. "
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
        max_length=bulk.MAX_AT_ONCE,
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


class ManyExtendSerializer(WorkspacesSerializer, ExtendSerializer):
    """The workspaces to extend, and the number of hours."""

    examples = {**WorkspacesSerializer.examples, **ExtendSerializer.examples}


class ManyMessageSerializer(WorkspacesSerializer):
    """The workspaces whose owners get a message, and its text."""

    text = serializers.CharField(
        max_length=owner_messages.MAX_TEXT, help_text="Text of the message, without formatting."
    )

    examples = {**WorkspacesSerializer.examples, "text": "Maintenance starts at 18:00."}


class BulkView(ApiView):
    tag = "workspaces"
    scopes = SCOPES

    def act_on_each(self, request: UserRequest, act: Callable[[UUID], object]) -> Response:
        workspaces = body_of(request, WorkspacesSerializer)["workspaces"]
        return self.answer(request, bulk.act_on_each(actor=request.user, workspaces=workspaces, act=act))

    def answer(
        self, request: UserRequest, results: Mapping[UUID, PortalError | None], **headers: str
    ) -> Response:
        """Return the result for each workspace: its current state, or the error."""
        done = [key for key, error in results.items() if error is None]
        visible = selectors.rows_for(request.user).filter(pk__in=done)
        shown = {row.pk: row for row in rows.read(list(visible.values_list("pk", flat=True)))}
        lines = [
            self._result(key, shown.get(key), document_of(error, request) if error is not None else None)
            for key, error in results.items()
        ]
        headers["Location"] = reverse("api:workspace-list")
        return Response({"results": lines}, status=202, headers=headers)

    def _result(
        self, workspace_id: UUID, row: WorkspaceRow | None, problem: dict[str, Any] | None
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

    @operation(
        "Stop many workspaces",
        description=f"Files are kept. {NOTE}",
        request=WorkspacesSerializer,
        responses={202: BulkSerializer},
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        return self.act_on_each(request, lambda key: services.stop(actor=request.user, workspace_id=key))


class DeleteView(BulkView):
    operation_ids = {"post": "deleteWorkspaces"}

    @operation(
        "Delete many workspaces",
        description=f"Home folders are kept. {NOTE}",
        request=WorkspacesSerializer,
        responses={202: BulkSerializer},
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        return self.act_on_each(request, lambda key: services.delete(actor=request.user, workspace_id=key))


class ExtendView(BulkView):
    operation_ids = {"post": "extendWorkspaces"}

    @operation(
        "Extend many workspaces",
        description=(
            f"Moves the end of each running workspace by `hours`. {NOTE} With an `Idempotency-Key`, a "
            "repeated request extends none of them again."
        ),
        request=ManyExtendSerializer,
        responses={202: BulkSerializer},
        parameters=[idempotency.PARAMETER],
        errors=[400, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, ManyExtendSerializer)
        act = partial(
            extending.extend,
            actor=request.user,
            seconds=body["seconds"],
            idempotency_key=idempotency.key_of(request),
        )
        results = bulk.act_on_each(
            actor=request.user, workspaces=body["workspaces"], act=lambda key: act(workspace_id=key)
        )
        return self.answer(request, results)


class MessageView(BulkView):
    operation_ids = {"post": "messageWorkspaceOwners"}

    @operation(
        "Write to the owners of workspaces",
        description=(
            "Sends one notice to each owner, with the names of the workspaces, in the portal and on the "
            f"owner's channels. You must be allowed to operate the workspaces. {NOTE}"
        ),
        request=ManyMessageSerializer,
        responses={202: BulkSerializer},
        parameters=[idempotency.PARAMETER],
        errors=[400, 409, 415],
        retry_after_s=RETRY_AFTER_S,
    )
    def post(self, request: UserRequest) -> Response:
        body = body_of(request, ManyMessageSerializer)
        sent = owner_messages.send(actor=request.user, **body, idempotency_key=idempotency.key_of(request))
        headers = {idempotency.REPLAYED: "true"} if sent.replayed else {}
        return self.answer(request, sent.results, **headers)


urlpatterns = [
    *routes("workspaces/stop", StopView, "workspaces-stop"),
    *routes("workspaces/delete", DeleteView, "workspaces-delete"),
    *routes("workspaces/extend", ExtendView, "workspaces-extend"),
    *routes("workspaces/message", MessageView, "workspaces-message"),
]
