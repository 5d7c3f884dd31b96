"""Rebalances once a minute: measures placement health, makes proposals, and applies automatic moves.

Passes can be interrupted: every step is committed separately, and each pass starts from current data. Open
proposals that are no longer useful are withdrawn; a dismissed proposal does not return for a day.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.fleet.inventory.models import RebalancingPolicy
from portal.reclaim import pacing
from portal.reclaim.engine.placement_health import (
    HEALTHY_PCT,
    PlacementHealth,
    device_score,
    node_score,
    placement_health,
)
from portal.reclaim.engine.rebalancing import RULES, Proposal, Rules, propose
from portal.reclaim.models import Discontent, ProposalState, RebalanceProposal
from portal.reclaim.rebalancing import policies, reading, services
from portal.reclaim.rebalancing.movables import SnapshotMovables
from portal.scheduling import moves, moving
from portal.scheduling.moves import PlannedMove
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot
from portal.workspaces.models import Workspace
from provisioning import messages

log = logging.getLogger(__name__)
MIN_AGE_TO_APPLY = timedelta(minutes=5)
"""Minimum age of a proposal before it is applied automatically."""
DISMISSED_FOR = timedelta(days=1)
KEPT_FOR = timedelta(days=30)
MAX_MOVES_IN_PROGRESS = 8
"""Number of moves in progress at which no further moves are applied automatically."""
MAX_NEW_PER_PASS = 3
MAX_SEARCH_S = 0.25
"""Limits per pass for simulating new proposals: their number, and CPU seconds."""
SCORE_HYSTERESIS = 10
"""Hysteresis: an open proposal stays open until the score exceeds the limit by this much."""


AcceptedProposal = tuple[Proposal, list[PlannedMove]]


@dataclass(frozen=True, slots=True)
class RebalancePassReport:
    """The result of a pass: the numbers of low scores, open proposals, and applied proposals."""

    discontent: int = 0
    proposed: int = 0
    applied: int = 0


def rules() -> Rules:
    """Return the engine's rules. The cool-down follows the site's settings."""
    rest_s = settings.BERTH_MOVE_REST_HOURS * 3600
    return replace(
        RULES,
        cool_down_s=rest_s,
        return_s=max(RULES.return_s, rest_s),
        patience_s=max(RULES.patience_s, 2 * moving.notice_s()),
    )


def run(now: datetime | None = None) -> RebalancePassReport:
    """Run one pass."""
    now = now or timezone.now()
    moves.end_obsolete(now)
    measurements = reading.read_measurements(now)
    blocked = reading.blocked_requests()
    slow = pacing.slow_workspaces(now)
    low: Mapping[UUID, PlacementHealth] = {}
    generations: Mapping[UUID, int] = {}
    accepted: Mapping[str, AcceptedProposal] = {}
    # Usually no score can be low and no request waits. Then nothing else has to be read.
    if measurements.suspects or blocked or slow:
        with reading.read_snapshot(now) as (snapshot, running):
            slow_devices = running.devices_of([str(pk) for pk in slow])
            suspected = reading.suspect_views(
                measurements, running.using(measurements.suspects | slow_devices), slow
            )
            verdicts = {pk: placement_health(view) for pk, view in suspected.items()}
            low = {pk: verdict for pk, verdict in verdicts.items() if verdict.score < HEALTHY_PCT}
            proposals = _proposals(measurements, snapshot.pools, running, verdicts, blocked, now)
            generations = running.generations()
            accepted = _accepted_proposals(snapshot, proposals, generations, now)
    _store_discontent(low, generations, now)
    stored = _store(accepted, now)
    applied = _apply(stored, now)
    forget_old(now)
    return RebalancePassReport(len(low), len(stored), applied)


def _proposals(
    measurements: reading.Measurements,
    pools: Mapping[UUID, PoolNodes],
    running: reading.RunningWorkspaces,
    verdicts: Mapping[UUID, PlacementHealth],
    blocked: Sequence[Workspace],
    now: datetime,
) -> list[Proposal]:
    """Return the engine's proposals."""
    requests = reading.single_node_requests(pools, blocked)
    if not requests and all(verdict.score >= HEALTHY_PCT for verdict in verdicts.values()):
        return []
    off = {pk for pk, policy in policies.policies().items() if policy is RebalancingPolicy.OFF}
    movables = SnapshotMovables(pools, running, verdicts, off)
    clusters = {str(key): pool.cluster for key, pool in pools.items() if pool.pool.takes_work}
    limits = rules()
    past = reading.past_moves(now - timedelta(seconds=limits.return_s))
    scores: dict[str | tuple[str, str], int] = {
        uuid: device_score(view)
        for uuid, view in measurements.devices.items()
        if uuid in measurements.suspects
    }
    scores |= {
        (str(pool), name): node_score(node.headroom)
        for (pool, name), node in measurements.nodes.items()
        if (pool, name) in measurements.suspects
    }
    proposed = propose(clusters, movables, requests, past, int(now.timestamp()), limits, scores)
    open_keys = set(RebalanceProposal.objects.filter(state=ProposalState.OPEN).values_list("key", flat=True))
    if open_keys - {key_of(proposal) for proposal in proposed}:
        # Open proposals may stay with a slightly higher score than new ones need.
        relaxed = replace(limits, low_score=limits.low_score + SCORE_HYSTERESIS)
        still_proposed = propose(clusters, movables, requests, past, int(now.timestamp()), relaxed, scores)
        taken = {move.workspace for proposal in proposed for move in proposal.moves}
        proposed += [
            proposal
            for proposal in still_proposed
            if key_of(proposal) in open_keys and not taken & {move.workspace for move in proposal.moves}
        ]
    return proposed


def key_of(proposal: Proposal) -> str:
    """Return a short key that is equal for equivalent proposals."""
    return hashlib.sha256(" ".join(proposal.key).encode()).hexdigest()


def _store_discontent(
    low: Mapping[UUID, PlacementHealth], generations: Mapping[UUID, int], now: datetime
) -> None:
    """Store the workspaces with low scores, and delete the rows of all others."""
    stored_rows = {row.workspace_id: row for row in Discontent.objects.all()}
    outdated = [pk for pk in stored_rows if pk not in low]
    rows = []
    for pk, verdict in low.items():
        row = stored_rows.get(pk)
        same = row is not None and row.generation == generations[pk]
        rows.append(
            Discontent(
                workspace_id=pk,
                generation=generations[pk],
                score=verdict.score,
                reason=verdict.reasons[0].as_json(),
                since=row.since if row is not None and same else now,
                observed_at=now,
            )
        )
    with transaction.atomic():
        Discontent.objects.filter(pk__in=outdated).delete()
        # A workspace may have been deleted since it was read.
        existing = set(Workspace.objects.filter(pk__in=list(low)).values_list("pk", flat=True))
        Discontent.objects.bulk_create(
            [row for row in rows if row.workspace_id in existing],
            update_conflicts=True,
            unique_fields=["workspace"],
            update_fields=["generation", "score", "reason", "since", "observed_at"],
        )


def _accepted_proposals(
    snapshot: ClusterSnapshot, proposals: Sequence[Proposal], generations: Mapping[UUID, int], now: datetime
) -> dict[str, AcceptedProposal]:
    """Return by key the proposals that were not dismissed and that work in a simulation of the queue."""
    by_key = {key_of(proposal): proposal for proposal in proposals}
    dismissed = RebalanceProposal.objects.filter(
        state=ProposalState.DISMISSED, decided_at__gt=now - DISMISSED_FOR, key__in=list(by_key)
    )
    for key in dismissed.values_list("key", flat=True):
        by_key.pop(key, None)
    still_open = RebalanceProposal.objects.filter(state=ProposalState.OPEN)
    before = {row.key: services.planned_moves(row) for row in still_open}
    return _feasible_proposals(snapshot, by_key, before, generations, now)


def _store(accepted: Mapping[str, AcceptedProposal], now: datetime) -> list[RebalanceProposal]:
    """Update the open proposals."""
    with transaction.atomic():
        rows = {
            row.key: row
            for row in RebalanceProposal.objects.select_for_update().filter(state=ProposalState.OPEN)
        }
        outdated = [row.pk for key, row in rows.items() if key not in accepted]
        RebalanceProposal.objects.filter(pk__in=outdated).update(
            state=ProposalState.WITHDRAWN, decided_at=now
        )
        stored = []
        for key, (proposal, planned) in accepted.items():
            row = rows.get(key) or RebalanceProposal(key=key, proposed_at=now)
            row.waiting_id = UUID(proposal.waiting) if proposal.waiting else None
            row.moves = [messages.dump(move) for move in planned]
            row.reason = proposal.reason.as_json()
            row.gain, row.lost, row.seen_at = proposal.gain, proposal.lost_work, now
            row.save()
            stored.append(row)
    return stored


def _feasible_proposals(
    snapshot: ClusterSnapshot,
    proposals: Mapping[str, Proposal],
    before: Mapping[str, list[PlannedMove]],
    generations: Mapping[UUID, int],
    now: datetime,
) -> dict[str, AcceptedProposal]:
    """Return proposals that the queue would execute unchanged, including a few new ones per pass.

    An unchanged proposal that passed before is simulated again only when applied, because each simulation
    needs a decision about the whole queue.
    """
    accepted: dict[str, AcceptedProposal] = {}
    fresh: list[str] = []
    planned = {key: _planned_moves(proposal, generations) for key, proposal in proposals.items()}
    for key, proposal in proposals.items():
        if before.get(key) == planned[key]:
            accepted[key] = (proposal, planned[key])
        else:
            fresh.append(key)
    if fresh:
        # Rotate the proposals, so that failing ones do not block others.
        first = int(now.timestamp()) // 60 * MAX_NEW_PER_PASS % len(fresh)
        fresh = (fresh[first:] + fresh[:first])[:MAX_NEW_PER_PASS]
        began = time.process_time()
        for key in fresh:
            if time.process_time() - began > MAX_SEARCH_S:
                break
            waiting = UUID(proposals[key].waiting) if proposals[key].waiting else None
            if moving.is_feasible(snapshot, planned[key], waiting):
                accepted[key] = (proposals[key], planned[key])
    return accepted


def _planned_moves(proposal: Proposal, generations: Mapping[UUID, int]) -> list[PlannedMove]:
    return [
        PlannedMove(
            UUID(move.workspace),
            generations[UUID(move.workspace)],
            UUID(move.pool),
            move.source,
            move.target,
        )
        for move in proposal.moves
    ]


def _apply(proposals: Sequence[RebalanceProposal], now: datetime) -> int:
    """Apply the oldest proposal that needs no operator. Returns how many were applied."""
    automatic = {pk for pk, policy in policies.policies().items() if policy is RebalancingPolicy.AUTOMATIC}
    if not automatic:
        return 0
    for row in sorted(proposals, key=lambda row: (row.proposed_at, row.key)):
        if moves.count_in_progress() >= MAX_MOVES_IN_PROGRESS:
            return 0
        if now - row.proposed_at < MIN_AGE_TO_APPLY or not may_apply_automatically(row, automatic):
            continue
        try:
            services.apply(actor=SYSTEM, proposal_id=row.pk, preemptible_only=True)
        except PortalError as error:
            log.info("did not carry out move proposal: %s", error)
            continue
        return 1
    return 0


def may_apply_automatically(row: RebalanceProposal, automatic: Collection[UUID]) -> bool:
    """Return whether all workspaces are preemptible and in pools with automatic rebalancing."""
    if not {planned.pool for planned in services.planned_moves(row)} <= set(automatic):
        return False
    keys = [move["workspace"] for move in row.moves]
    return not Workspace.objects.filter(pk__in=keys, preemptible=False).exists()


def forget_old(now: datetime) -> int:
    """Delete old proposals that are no longer open. Returns how many."""
    old: Any = RebalanceProposal.objects.exclude(state=ProposalState.OPEN).filter(
        decided_at__lt=now - KEPT_FOR
    )
    deleted: int = old.delete()[0]
    return deleted
