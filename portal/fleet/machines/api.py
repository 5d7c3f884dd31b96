"""REST API of machines and join tokens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.response import Response

from portal.common.api import (
    ApiView,
    ListViewSet,
    ReadViewSet,
    Router,
    UserRequest,
    body_of,
    documented,
    filters,
    operation,
    routes,
)
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.fleet.inventory import selectors as inventory
from portal.fleet.inventory.api import SCOPES
from portal.fleet.machines import presenters, selectors, services
from portal.fleet.machines.codes import MachineCode
from portal.fleet.machines.models import JoinToken, Machine, MachineState
from portal.fleet.machines.readiness import missing_requirements
from portal.fleet.machines.serializers import (
    JoinTokenSerializer,
    MachineNoteSerializer,
    MachineSerializer,
    NewJoinTokenSerializer,
)
from portal.people.accounts.mfa.proof import require_fresh
from portal.people.accounts.policies import require_see_all


class MachineFilter(filters.FilterSet):
    pool = filters.CharFilter(field_name="pool__slug", label="Slug of the pool.")
    name = filters.CharFilter(label="Only the one with this name.")
    state = filters.ChoiceFilter(choices=MachineState.choices, label="Only machines in this state.")


@documented(
    list="List machines",
    retrieve="Read a machine",
    of="Machines that have joined pools, for operators and auditors.",
)
class MachineViewSet(ReadViewSet):
    tag = "machines"
    operation_ids = {
        "list": "listMachines",
        "retrieve": "getMachine",
        "destroy": "deleteMachine",
        "revoke": "revokeMachine",
    }
    queryset = Machine.objects.none()
    serializer_class = MachineSerializer
    filterset_class = MachineFilter
    scopes = SCOPES
    ordering = ("name", "id")
    missing = MachineCode.NO_SUCH_MACHINE
    lookup_field = "pk"
    lookup_url_kwarg = "machine_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[Machine]:
        return selectors.machines(self.request.user)

    @operation(
        "Revoke a machine",
        description=(
            "For operators. Ends its connections and ignores its messages, even if work runs "
            "there. Idempotent."
        ),
        request=MachineNoteSerializer,
        responses={200: MachineSerializer},
        errors=[400, 404, 415],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, machine_id: UUID) -> Response:
        require_fresh(request)
        reason = body_of(request, MachineNoteSerializer).get("note", "")
        services.revoke(actor=request.user, machine_id=machine_id, reason=reason)
        return self.answer(self.get_object())

    @operation(
        "Delete a machine",
        description=(
            "For operators. Deletes a machine that has left or is revoked. Its name can then be reused. "
            "Denied while the machine has workspaces or the only copy of a home; `losses` lists them."
        ),
        responses={204: None},
        errors=[404, 409, 503],
    )
    def destroy(self, request: UserRequest, machine_id: UUID) -> Response:
        services.remove(actor=request.user, machine_id=machine_id)
        return Response(status=204)


@documented(
    list="List a pool's join tokens",
    of="Lists valid join tokens, without their secrets.",
    errors=[404],
)
class JoinTokenViewSet(ListViewSet):
    tag = "machines"
    operation_ids = {"list": "listJoinTokens", "create": "createJoinToken", "revoke": "revokeJoinToken"}
    queryset = JoinToken.objects.none()
    serializer_class = JoinTokenSerializer
    scopes = SCOPES
    ordering = ("-created_at", "-id")
    lookup_url_kwarg = "join_token_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[JoinToken]:
        return selectors.waiting_tokens(self.request.user, inventory.pool_by_slug(self.kwargs["slug"]))

    @operation(
        "Create a join token",
        idempotent=True,
        description=(
            "For operators. The token is shown only once. One machine can join with it within 1 hour."
        ),
        responses={201: NewJoinTokenSerializer},
        located=False,
        errors=[404, 409, 503],
    )
    def create(self, request: UserRequest, slug: str) -> Response:
        require_fresh(request)
        created = services.make_join_token(actor=request.user, pool=inventory.pool_by_slug(slug))
        serializer = NewJoinTokenSerializer(
            {"token": created.token, "text": created.text, "command": presenters.command_of(created.text)}
        )
        return Response(serializer.data, status=201)

    @operation(
        "Revoke a join token",
        description="For operators. The token can no longer be used.",
        request=None,
        responses={204: None},
        errors=[404],
    )
    @action(detail=True, methods=["post"])
    def revoke(self, request: UserRequest, slug: str, join_token_id: UUID) -> Response:
        pool = inventory.pool_by_slug(slug)
        services.revoke_join_token(actor=request.user, pool=pool, token_id=join_token_id)
        return Response(status=204)


class MissingSerializer(serializers.Serializer[Reason]):
    """A problem that prevents workspaces from starting in a pool."""

    message = serializers.SerializerMethodField()
    next_action = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField(help_text="Problem, as a code and in words.")

    def get_message(self, reason: Reason) -> str:
        return message_of(reason)

    def get_next_action(self, reason: Reason) -> str:
        return next_action_of(reason)

    @extend_schema_field(ReasonSerializer)
    def get_reason(self, reason: Reason) -> dict[str, Any]:
        return reason.as_json()


class PoolMissing(ApiView):
    tag = "gpus"
    operation_ids = {"get": "listPoolMissing"}
    scopes = SCOPES

    @operation(
        "List problems of a pool",
        description=(
            "For operators and auditors. Lists problems that prevent workspaces from starting in the pool, "
            "most severe first."
        ),
        responses={200: MissingSerializer(many=True)},
        errors=[404],
    )
    def get(self, request: UserRequest, slug: str) -> Response:
        require_see_all(request.user)
        reasons = missing_requirements(inventory.pool_by_slug(slug))
        rows = MissingSerializer(instance=reasons, many=True)  # type: ignore[arg-type]
        return Response(rows.data)


router = Router()
router.register("machines", MachineViewSet)
router.register("pools/<slug:slug>/join-tokens", JoinTokenViewSet, basename="join-token")
urlpatterns = [*router.urls, *routes("pools/<slug:slug>/missing", PoolMissing, "pool-missing")]
