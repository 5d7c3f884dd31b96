"""Explains why a request does not start: the blocking rule with its numbers and holders, as a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from portal.catalog.environments.selectors import waiting_reason
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import NOT_SUITED, PlacementCode
from portal.scheduling.engine.model import Blocker, Holder, Outcome, Workload
from portal.scheduling.engine.placement.types import NodeReason
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot

NodeReasons = tuple[NodeReason, ...]
MAX_HOLDERS = 3
RULES_OF_NODES = frozenset({Rule.PLACEMENT, Rule.CAPACITY})
"""Rules for which the nodes' reasons are more useful than numbers."""


def blocker_reason(
    snapshot: ClusterSnapshot,
    workload: Workload,
    blocker: Blocker,
    *,
    placement_request: PlacementRequest,
    outcome: Outcome = Outcome.QUEUED,
) -> Reason:
    """Return the blocking rule with its numbers, the first holders and, for placement, a node's reason.

    Amounts are in base units, times in ISO 8601, teams by display name.
    """
    params: dict[str, Any] = {
        "resource": blocker.resource,
        "wanted": blocker.wanted,
        "free": max(0, blocker.free),
        "limit": blocker.limit,
        "team": snapshot.team_names.get(workload.team, workload.team),
        "holders": [_holder(snapshot, holder) for holder in blocker.holders[:MAX_HOLDERS]],
        "outcome": outcome.value,
    }
    if blocker.rule in RULES_OF_NODES:
        if (home_reason := home_unavailable_reason(placement_request)) is not None:
            return home_reason
        if (waits := environment_pending_reason(placement_request)) is not None:
            return waits
        params |= first_node(node_reasons(placement_request))
    return Reason(blocker.rule, params)


def with_known_ends(blocker: Blocker, placement_request: PlacementRequest) -> Blocker:
    """Return the blocker without its holders' expected ends if no node for the request reports."""
    if blocker.rule not in RULES_OF_NODES or placement_request.silent is None:
        return blocker
    return replace(blocker, holders=tuple(replace(holder, next_end_s=None) for holder in blocker.holders))


def no_capacity_reason(placement_request: PlacementRequest) -> Reason:
    """Return why no node takes the request now, regardless of limits."""
    if placement_request.lost_home:
        return home_lost_reason(placement_request)
    if (home_reason := home_unavailable_reason(placement_request)) is not None:
        return home_reason
    if (waits := environment_pending_reason(placement_request)) is not None:
        return waits
    return Reason(Rule.PLACEMENT, first_node(node_reasons(placement_request)))


def maintenance_reason(pool: PoolNodes) -> Reason:
    """Return the reason for a pool in maintenance, with its planned end."""
    active = pool.maintenance
    assert active is not None  # the caller has checked that the pool is in maintenance
    params = {"until": active.until.isoformat(), "reason": active.reason}
    if active.site:
        return Reason(AdmissionCode.SITE_MAINTENANCE, params)
    return Reason(AdmissionCode.POOL_MAINTENANCE, {"pool": pool.pool.name, **params})


def home_lost_reason(placement_request: PlacementRequest) -> Reason:
    """Return the reason for a lost home: its user must agree to a new one first."""
    return Reason(AdmissionCode.HOME_LOST, {"node": placement_request.lost_home})


def home_unavailable_reason(placement_request: PlacementRequest) -> Reason | None:
    """Return the reason for a home that is being moved, archived or restored, or None."""
    if node := placement_request.moving_home:
        return Reason(AdmissionCode.HOME_MOVING, {"node": node})
    if node := placement_request.archived_home:
        return Reason(AdmissionCode.HOME_ARCHIVED, {"node": node})
    if node := placement_request.away_home:
        return Reason(AdmissionCode.HOME_AWAY, {"node": node})
    return None


def environment_pending_reason(placement_request: PlacementRequest) -> Reason | None:
    """Return the reason and progress if no node has the software environment yet, or None."""
    digest = placement_request.missing_environment
    return waiting_reason(digest) if digest else None


def too_large_reason(reasons: NodeReasons) -> Reason:
    """Return the reason for a request that no node could ever take."""
    return Reason(AdmissionCode.NO_NODE_LARGE_ENOUGH, first_node(reasons))


def node_reasons(placement_request: PlacementRequest) -> NodeReasons:
    """Return why each node does not take the request now. Ignores the location of a home that can move."""
    along = placement_request.movable_home
    request = along.request if along is not None else placement_request
    return tuple(
        reason
        for pool in request.pools
        for reason in pool.reasons(pool.with_requirements(request.request, request.software))
    )


def first_node(reasons: Sequence[NodeReason]) -> dict[str, Any]:
    """Return one node's reason as params: preferably of a node that suits the request or has the home."""
    if not reasons:
        return {"node": "", "node_reason": None, "more_nodes": 0}
    at_home = next((pair for pair in reasons if pair[1].code != PlacementCode.HOME_ELSEWHERE), reasons[0])
    node, reason = next((pair for pair in reasons if pair[1].code not in NOT_SUITED), at_home)
    return {"node": node, "node_reason": reason.as_json(), "more_nodes": len(reasons) - 1}


def as_data(blocker: Blocker) -> dict[str, Any]:
    """Return the blocker as JSON, as stored with a workspace and shown by the API. Teams are slugs."""
    return {
        "rule": blocker.rule.value,
        "resource": blocker.resource,
        "wanted": blocker.wanted,
        "free": blocker.free,
        "limit": blocker.limit,
        "holders": [
            {
                "team": holder.team,
                "amount": holder.amount,
                "until": _iso(holder.next_end_s),
                "idle": holder.idle,
                "idle_s": holder.idle_s if holder.idle_s >= 0 else None,
            }
            for holder in blocker.holders
        ],
    }


def _holder(snapshot: ClusterSnapshot, holder: Holder) -> dict[str, Any]:
    until = holder.next_end_s
    if until is not None and until < snapshot.now_s:
        # Rounded up to multiples of the expected overrun, so that messages change rarely.
        step_s = snapshot.scheduler.policy.overdue_s
        until += step_s * -(-(snapshot.now_s - until) // step_s)
    return {
        "team": snapshot.team_names.get(holder.team, holder.team),
        "amount": holder.amount,
        "until": _iso(until),
        "idle": holder.idle,
        "idle_s": holder.idle_s,
    }


def _iso(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
