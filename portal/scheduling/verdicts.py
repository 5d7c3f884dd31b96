"""Verdicts on requests: outcome, reason, placement, expected start, and the quota request that would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from portal.catalog.models import Flavor
from portal.common.formatting import units_per_whole
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.fleet.inventory.models import Pool, PoolState
from portal.quota.limits import resources
from portal.scheduling import blockers
from portal.scheduling.choice import Explanation
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine import model
from portal.scheduling.impossible import never_reason
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.placer import HomeMoveAhead
from portal.scheduling.pool_nodes import PoolNodes, without_environments
from portal.scheduling.snapshot import ClusterSnapshot
from provisioning.types import Placement

Outcome = model.Outcome
MISSING_GPU_HOURS = 10
"""Number of GPU-hours to suggest for a team that has none left."""


@dataclass(frozen=True, slots=True)
class QuotaRequestDraft:
    """A quota request that would allow the start: `amount` more of `resource` for `team`."""

    team: str
    kind: str
    resource: str
    amount: int
    note: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a request, its reason, and each node's reason.

    - `position` (from 1), `eta_at`, `basis`: set if the request waits. `member_order`: how the members' use
      changes its position.
    - `blocker`: the blocking rule with its numbers and holders.
    - `quota_request`: set if a request for more quota would help.
    - `pool`, `placement`: where the request would go now.
    - `makes_room`: ids of the workspaces that would be preempted.
    - `flavor`: the listed flavor on which the request starts now or is expected to start. `next_flavor`: why,
      if the request waits.
    - `home_move`: the home move, if the request starts now on another node than its home's.
    """

    outcome: Outcome
    reason: Reason
    reasons: blockers.NodeReasons = ()
    pool: Pool | None = None
    placement: Placement | None = field(default=None, repr=False)
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    member_order: Reason | None = None
    blocker: Mapping[str, Any] = field(default_factory=dict)
    quota_request: QuotaRequestDraft | None = None
    makes_room: tuple[str, ...] = ()
    flavor: Flavor | None = None
    next_flavor: Reason | None = None
    home_move: HomeMoveAhead | None = None

    @property
    def message(self) -> str:
        """The reason as one or two sentences."""
        return message_of(self.reason)

    @property
    def next_action(self) -> str:
        """The next action for the user, or an empty string."""
        return next_action_of(self.reason)

    @property
    def eta_basis(self) -> str:
        """The basis of the expected start as text, or an empty string."""
        return message_of(self.basis) if self.basis is not None else ""

    @property
    def member_order_text(self) -> str:
        """How the members' use changes its position, as a sentence, or an empty string."""
        return message_of(self.member_order) if self.member_order is not None else ""

    @property
    def next_flavor_text(self) -> str:
        """The flavor that the request waits for and why, as a sentence, or an empty string."""
        return message_of(self.next_flavor) if self.next_flavor is not None else ""

    @property
    def starts_now(self) -> bool:
        """Whether it would start at once, instead of waiting here or at an engine."""
        return self.outcome is Outcome.FITS_NOW and not self.joins_engine_queue

    @property
    def joins_engine_queue(self) -> bool:
        """Whether it would be handed over at once to an engine, and wait there."""
        return self.reason.code == AdmissionCode.HANDED_OVER_TO_QUEUE

    @property
    def at_engine(self) -> bool:
        """Whether it would be handed over at once to an engine, which starts it soon or queues it."""
        return self.reason.code in (AdmissionCode.HANDED_OVER, AdmissionCode.HANDED_OVER_TO_QUEUE)

    @property
    def in_maintenance(self) -> bool:
        """Whether only maintenance keeps the request from the queue."""
        return self.reason.code in (AdmissionCode.POOL_MAINTENANCE, AdmissionCode.SITE_MAINTENANCE)

    @property
    def possible(self) -> bool:
        """Whether the request would start without further changes, now or later."""
        return self.outcome in (Outcome.FITS_NOW, Outcome.QUEUED)


def hand_over_reason(pool: PoolNodes, placement: Placement) -> Reason:
    """Return what happens at an engine that places by itself, judged by the free units that it reported."""
    count = sum(len(part.devices) for part in placement.nodes)
    model, free, total = pool.free_at_engine(placement)
    params = {"pool": pool.pool.name, "model": model, "free": free, "total": total}
    return Reason(AdmissionCode.HANDED_OVER if free >= count else AdmissionCode.HANDED_OVER_TO_QUEUE, params)


def start_reason(
    pool: PoolNodes,
    placement: Placement,
    placement_request: PlacementRequest,
    explanation: Explanation | None,
    home_move: HomeMoveAhead | None,
) -> Reason:
    """Return why the request starts now. If it has a choice of models, includes the chosen model and why."""
    if pool.handed_over is not None:
        return hand_over_reason(pool, placement)
    if home_move is not None:
        return Reason(
            AdmissionCode.FITS_NOW_WITH_HOME,
            {
                "node": home_move.target,
                "source": home_move.source,
                "size_mib": home_move.size_mib,
                "seconds": home_move.seconds,
            },
        )
    if explanation is None:
        return Reason(AdmissionCode.FITS_NOW)
    return Reason(
        AdmissionCode.FITS_NOW_ON_MODEL,
        {
            "resource": explanation.resource,
            "memory_mib": placement_request.request.accelerators.memory_mib,
            "kept": [
                {
                    "resource": spared.resource,
                    "waiting": spared.waiting,
                    "more_expensive": spared.more_expensive,
                }
                for spared in explanation.spared
            ],
        },
    )


def quota_request_draft(
    *, template: str, flavor: str, team: str, blocker: model.Blocker
) -> QuotaRequestDraft | None:
    """Return the quota request that would allow a template to start on a flavor, or None."""
    short = max(1, blocker.wanted - max(0, blocker.free))
    names = {"template": template, "flavor": flavor}
    note = _("To start %(template)s on %(flavor)s.") % names
    if blocker.rule is Rule.USER_CAP:
        return QuotaRequestDraft(team, "member_cap", blocker.resource, short, note)
    if blocker.rule in (Rule.TEAM_LIMIT, Rule.COHORT):
        return QuotaRequestDraft(team, "quota", blocker.resource, short, note)
    if blocker.rule is Rule.LEDGER:
        hours = MISSING_GPU_HOURS * units_per_whole(resources.GPU_HOURS)
        return QuotaRequestDraft(team, "ledger", resources.GPU_HOURS, hours, note)
    return None


def capacity_verdict(snapshot: ClusterSnapshot, placement_request: PlacementRequest) -> Verdict:
    place = snapshot.placer.best_placement(placement_request)
    if place is not None:
        reason = Reason(AdmissionCode.FITS_NOW)
        if place.pool.handed_over is not None:
            reason = hand_over_reason(place.pool, place.placement)
        return Verdict(Outcome.FITS_NOW, reason, pool=place.pool.pool, placement=place.placement)
    return Verdict(
        Outcome.QUEUED,
        blockers.no_capacity_reason(placement_request),
        reasons=blockers.node_reasons(placement_request),
    )


def impossible_verdict(placement_request: PlacementRequest, candidates: Sequence[PoolNodes]) -> Verdict:
    if placement_request.lost_home:
        return Verdict(Outcome.IMPOSSIBLE, blockers.home_lost_reason(placement_request))
    if all(pool.pool.state == PoolState.UNKNOWN for pool in candidates):
        return Verdict(Outcome.IMPOSSIBLE, Reason(AdmissionCode.NO_NODE_REPORTED))
    reasons = list(placement_request.refusals)
    for pool in placement_request.pools:
        request = without_environments(placement_request.request)
        reasons += pool.reasons_if_empty(pool.with_requirements(request, placement_request.software))
    return Verdict(
        Outcome.IMPOSSIBLE, never_reason(placement_request, tuple(reasons)), reasons=tuple(reasons)
    )
