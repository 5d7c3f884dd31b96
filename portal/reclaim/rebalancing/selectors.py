"""Queries for proposals and low scores, for operators and auditors."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db.models import F, QuerySet
from django.utils import timezone

from portal.common.errors import NotFound
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_see_all
from portal.reclaim.engine.codes import RebalanceCode
from portal.reclaim.models import Discontent, ProposalState, RebalanceProposal
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

FRESH = timedelta(minutes=5)
"""Maximum age of an observation that counts as current."""


def proposals(actor: User) -> QuerySet[RebalanceProposal]:
    """Return all stored proposals, newest first."""
    require_see_all(actor)
    return RebalanceProposal.objects.select_related("waiting__team", "waiting__owner")


def open_proposals(actor: User) -> QuerySet[RebalanceProposal]:
    return proposals(actor).filter(state=ProposalState.OPEN).order_by("proposed_at", "id")


def decided_proposals(actor: User) -> QuerySet[RebalanceProposal]:
    """Return applied and dismissed proposals, latest first."""
    chosen = (ProposalState.APPLIED, ProposalState.DISMISSED)
    return proposals(actor).filter(state__in=chosen).order_by("-decided_at", "-id")


def proposal(actor: User, proposal_id: UUID) -> RebalanceProposal:
    proposal = proposals(actor).filter(pk=proposal_id).first()
    if proposal is None:
        raise NotFound(Reason(RebalanceCode.NO_SUCH_PROPOSAL))
    return proposal


def _fresh_rows() -> QuerySet[Discontent]:
    return Discontent.objects.filter(
        observed_at__gt=timezone.now() - FRESH,
        workspace__state=State.RUNNING,
        workspace__generation=F("generation"),
    )


def discontent(actor: User) -> QuerySet[Discontent]:
    """Return running workspaces with low scores, worst first."""
    require_see_all(actor)
    rows = _fresh_rows().select_related("workspace__team", "workspace__flavor", "workspace__pool")
    return rows.order_by("score", "since", "workspace")


def discontent_of(workspace: Workspace) -> Discontent | None:
    """Return why a workspace's score is low, or None. The caller checks visibility."""
    return _fresh_rows().filter(workspace=workspace).first() if workspace.state == State.RUNNING else None
