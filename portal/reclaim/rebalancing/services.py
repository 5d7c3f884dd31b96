"""Services for proposals: apply, dismiss and revert."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_noop

from portal.common.actors import SystemActor, label_of
from portal.common.errors import NotFound, StateConflict
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.fleet.inventory.models import PlacementLock
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.models import ProposalState, RebalanceProposal
from portal.reclaim.rebalancing import policies
from portal.scheduling import moving
from portal.scheduling.moves import PlannedMove
from provisioning import messages


def planned_moves(row: RebalanceProposal) -> list[PlannedMove]:
    """Return the moves of a proposal as values."""
    return messages.load(row.moves, list[PlannedMove])


def _locked(proposal_id: UUID) -> RebalanceProposal:
    """Lock the queue and then the proposal, like a pass, and return the proposal."""
    PlacementLock.hold()
    row = RebalanceProposal.objects.select_for_update().filter(pk=proposal_id).first()
    if row is None:
        raise NotFound(Reason(RebalanceCode.NO_SUCH_PROPOSAL))
    return row


@transaction.atomic
def apply(
    *, actor: User | SystemActor, proposal_id: UUID, preemptible_only: bool = False
) -> RebalanceProposal:
    """Request the moves of a proposal. Idempotent.

    Raises `NotAllowed`, `NotFound`, and `StateConflict` if the proposal is no longer open or no longer works.
    """
    require_operator(actor)
    row = _locked(proposal_id)
    if row.state == ProposalState.APPLIED:
        return row
    if row.state != ProposalState.OPEN:
        raise StateConflict(Reason(RebalanceCode.PROPOSAL_OVER), state=row.state)
    planned = planned_moves(row)
    if policies.is_disabled_in_any(move.pool for move in planned):
        # Rebalancing was disabled since the proposal; the next pass withdraws it.
        raise StateConflict(Reason(RebalanceCode.PROPOSAL_OVER), state=row.state)
    reason = message_of(Reason.from_json(row.reason))
    moving.request_moves(
        actor=actor,
        planned=planned,
        reason=reason,
        waiting=row.waiting_id,
        preemptible_only=preemptible_only,
    )
    return _decide(row, ProposalState.APPLIED, actor, "applied a proposal to move", reason)


@transaction.atomic
def dismiss(*, actor: User, proposal_id: UUID) -> RebalanceProposal:
    """Dismiss a proposal for a day. If it was applied, cancel moves that have not begun. Idempotent.

    Raises `NotAllowed`, `NotFound`, and `StateConflict` if the proposal was withdrawn.
    """
    require_operator(actor)
    row = _locked(proposal_id)
    if row.state == ProposalState.DISMISSED:
        return row
    if row.state == ProposalState.WITHDRAWN:
        raise StateConflict(Reason(RebalanceCode.PROPOSAL_OVER), state=row.state)
    if row.state == ProposalState.APPLIED:
        keys = [move.workspace for move in planned_moves(row)]
        reason = gettext_noop("an operator dismissed the proposal")
        if not moving.cancel_moves(actor=actor, workspaces=keys, reason=reason):
            raise StateConflict(Reason(RebalanceCode.PROPOSAL_OVER), state=row.state)
    return _decide(
        row,
        ProposalState.DISMISSED,
        actor,
        "dismissed a proposal to move",
        message_of(Reason.from_json(row.reason)),
    )


def _decide(
    row: RebalanceProposal, state: ProposalState, actor: User | SystemActor, message: str, reason: str
) -> RebalanceProposal:
    row.state, row.decided_at, row.decided_by = state, timezone.now(), label_of(actor)
    row.save(update_fields=["state", "decided_at", "decided_by"])
    events.record(
        actor=actor,
        kind=AuditKind.REBALANCE_APPLIED if state == ProposalState.APPLIED else AuditKind.REBALANCE_DISMISSED,
        message=f"{message} {len(row.moves)} running workspace{'' if len(row.moves) == 1 else 's'}",
        reason=reason,
        data={
            "proposal": str(row.pk),
            "workspaces": [move["workspace"] for move in row.moves],
            "waiting": str(row.waiting_id) if row.waiting_id else "",
        },
    )
    return row
