"""REST API of proposals to move running work, for operators and auditors."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.api import ReadViewSet, Router, UserRequest, documented, filters, operation
from portal.fleet.inventory.api import SCOPES
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.models import ProposalState, RebalanceProposal
from portal.reclaim.rebalancing import presenters, selectors, services
from portal.reclaim.rebalancing.presenters import MoveRow, ProposalRow


class ProposedMoveSerializer(serializers.Serializer[Any]):
    """A move of a running workspace within its pool."""

    workspace = serializers.UUIDField(
        allow_null=True, help_text="Id of the workspace; null if it has been deleted."
    )
    name = serializers.CharField(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    team = serializers.CharField(allow_null=True)
    preemptible = serializers.BooleanField(
        allow_null=True, help_text="Whether the workspace can be preempted."
    )
    loses_work = serializers.BooleanField(allow_null=True, help_text="Whether preemption loses work.")
    from_node = serializers.CharField(help_text="Name of the source node.")
    from_devices = serializers.ListField(child=serializers.CharField(), help_text="UUIDs of the devices.")
    to_node = serializers.CharField(
        help_text="Name of the target node; the same node if only the devices change."
    )
    to_devices = serializers.ListField(child=serializers.CharField(), help_text="UUIDs of the devices.")


class RebalanceProposalSerializer(serializers.Serializer[Any]):
    """A proposal to move running workspaces, all or none."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(ProposalState.choices)
    reason = serializers.CharField(help_text="Code of the reason.")
    message = serializers.CharField(help_text="Reason, as a sentence.")
    gain = serializers.IntegerField(help_text="Gain, in `gain_unit`.")
    gain_unit = serializers.ChoiceField(
        ["percent", "milli_gpu"],
        help_text="`percent` of what the workspace could get; `milli_gpu` of the request that starts.",
    )
    lost_gpu_seconds = serializers.IntegerField(
        help_text="Maximum work that would be repeated, in GPU-seconds."
    )
    waiting = serializers.UUIDField(
        allow_null=True, help_text="Id of the queued workspace that would start; null for none."
    )
    interrupts = serializers.CharField(help_text="Interruptions, in words.")
    moves = ProposedMoveSerializer(many=True, help_text="Proposed moves.")
    proposed_at = serializers.DateTimeField(help_text="Time of the first proposal.")
    seen_at = serializers.DateTimeField(help_text="Last time that the proposal was found valid.")
    decided_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the decision; null if not decided."
    )
    decided_by = serializers.CharField(
        allow_blank=True, help_text="Name of the user who decided; empty if not decided."
    )


def _move(row: MoveRow) -> dict[str, Any]:
    workspace = row.workspace
    return {
        "workspace": workspace.pk if workspace else None,
        "name": workspace.name if workspace else None,
        "owner": workspace.owner.username if workspace else None,
        "team": workspace.team.slug if workspace else None,
        "preemptible": workspace.preemptible if workspace else None,
        "loses_work": workspace.loses_work if workspace else None,
        "from_node": row.source_node,
        "from_devices": row.source_devices,
        "to_node": row.target_node,
        "to_devices": row.target_devices,
    }


def _data(row: ProposalRow) -> dict[str, Any]:
    proposal = row.proposal
    return {
        "id": proposal.pk,
        "state": proposal.state,
        "reason": proposal.reason.get("code", ""),
        "message": row.reason,
        "gain": proposal.gain,
        "gain_unit": "percent" if proposal.waiting_id is None else "milli_gpu",
        "lost_gpu_seconds": proposal.lost // 1000,
        "waiting": proposal.waiting_id,
        "interrupts": row.interrupts,
        "moves": [_move(move) for move in row.moves],
        "proposed_at": proposal.proposed_at,
        "seen_at": proposal.seen_at,
        "decided_at": proposal.decided_at,
        "decided_by": proposal.decided_by,
    }


class RebalanceProposalFilter(filters.FilterSet):
    state = filters.ChoiceFilter(choices=ProposalState.choices, label="Only those in this state.")


@documented(
    list="List proposals to move running work",
    retrieve="Read a proposal to move running work",
    of=(
        "For operators and auditors. Newest first. Proposals are created once a minute, with reason, gain "
        "and interruptions. Decided proposals are kept for 30 days."
    ),
)
class RebalanceProposalViewSet(ReadViewSet):
    tag = "machines"
    operation_ids = {
        "list": "listRebalanceProposals",
        "retrieve": "getRebalanceProposal",
        "apply": "applyRebalanceProposal",
        "dismiss": "dismissRebalanceProposal",
    }
    queryset = RebalanceProposal.objects.none()
    serializer_class = RebalanceProposalSerializer
    filterset_class = RebalanceProposalFilter
    scopes = SCOPES
    ordering = ("-proposed_at", "-id")
    missing = RebalanceCode.NO_SUCH_PROPOSAL
    lookup_url_kwarg = "proposal_id"
    lookup_value_converter = "uuid"

    def get_queryset(self) -> QuerySet[RebalanceProposal]:
        return selectors.proposals(self.request.user)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        rows = [_data(row) for row in presenters.rows(page or [])]
        return self.get_paginated_response(self.get_serializer(rows, many=True).data)

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self._proposal_response(self.get_object())

    def _proposal_response(self, proposal: RebalanceProposal) -> Response:
        (row,) = presenters.rows([proposal])
        return Response(self.get_serializer(_data(row)).data)

    @operation(
        "Apply a proposal to move running work",
        description=(
            "For operators. Users are notified. After the notice their workspaces stop, keep their files and "
            "start again in the proposed places. Moves all of them or none. Denied if the proposal no longer "
            "works. Idempotent."
        ),
        request=None,
        responses={200: RebalanceProposalSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def apply(self, request: UserRequest, proposal_id: UUID) -> Response:
        services.apply(actor=request.user, proposal_id=proposal_id)
        return self._proposal_response(selectors.proposal(request.user, proposal_id))

    @operation(
        "Dismiss a proposal to move running work",
        description=(
            "For operators. The same move is not proposed again for 1 day. If the proposal was "
            "applied, workspaces that have not begun to stop keep running. Idempotent."
        ),
        request=None,
        responses={200: RebalanceProposalSerializer},
        errors=[404, 409],
    )
    @action(detail=True, methods=["post"])
    def dismiss(self, request: UserRequest, proposal_id: UUID) -> Response:
        services.dismiss(actor=request.user, proposal_id=proposal_id)
        return self._proposal_response(selectors.proposal(request.user, proposal_id))


router = Router()
router.register("rebalance-proposals", RebalanceProposalViewSet, basename="rebalance-proposal")
urlpatterns = router.urls
