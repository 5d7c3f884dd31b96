"""Why a request does not start: the rule in the way with its numbers and holders, as a reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from portal.catalog.environments.selectors import why_it_waits
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import NOT_SUITED, PlacementCode
from portal.scheduling.engine.model import Blocker, Holder, Outcome, Workload
from portal.scheduling.engine.placement.types import NodeReason
from portal.scheduling.placement_request import PlacementRequest
from portal.scheduling.snapshot import ClusterSnapshot

NodeReasons = tuple[NodeReason, ...]
MAX_HOLDERS = 3
OF_NODES = frozenset({Rule.PLACEMENT, Rule.CAPACITY})
"""The rules of which the nodes say more than the numbers."""


def reason_of(
    snapshot: ClusterSnapshot,
    workload: Workload,
    blocker: Blocker,
    *,
    placement_request: PlacementRequest,
    outcome: Outcome = Outcome.QUEUED,
) -> Reason:
    """The rule in the way. Its params are the numbers, the first holders, and for nodes the first reason.

    Amounts are in base units, times in ISO 8601; teams are named as people know them.
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
    if blocker.rule in OF_NODES:
        if (held := home_held(placement_request)) is not None:
            return held
        if (waits := environment_on_its_way(placement_request)) is not None:
            return waits
        params |= first_node(node_reasons(placement_request))
    return Reason(blocker.rule, params)


def no_room(placement_request: PlacementRequest) -> Reason:
    """No node takes it now, whatever the limits say."""
    if placement_request.lost_home:
        return home_lost(placement_request)
    if (held := home_held(placement_request)) is not None:
        return held
    if (waits := environment_on_its_way(placement_request)) is not None:
        return waits
    return Reason(Rule.PLACEMENT, first_node(node_reasons(placement_request)))


def home_lost(placement_request: PlacementRequest) -> Reason:
    """No node takes it until its user has said that a new home may begin."""
    return Reason(AdmissionCode.HOME_LOST, {"node": placement_request.lost_home})


def home_held(placement_request: PlacementRequest) -> Reason | None:
    """No node takes it until the home is where it goes, or its archive is made or restored; None without."""
    if node := placement_request.moving_home:
        return Reason(AdmissionCode.HOME_MOVING, {"node": node})
    if node := placement_request.archived_home:
        return Reason(AdmissionCode.HOME_ARCHIVED, {"node": node})
    if node := placement_request.away_home:
        return Reason(AdmissionCode.HOME_AWAY, {"node": node})
    return None


def environment_on_its_way(placement_request: PlacementRequest) -> Reason | None:
    """That no node has the software yet that it runs in, and how far that is; None where one has it."""
    digest = placement_request.missing_environment
    return why_it_waits(digest) if digest else None


def too_large(reasons: NodeReasons) -> Reason:
    """No node could ever take it."""
    return Reason(AdmissionCode.NO_NODE_LARGE_ENOUGH, first_node(reasons))


def node_reasons(placement_request: PlacementRequest) -> NodeReasons:
    """Why no node takes it now, node by node."""
    return tuple(
        reason
        for pool in placement_request.pools
        for reason in pool.reasons(pool.adapted(placement_request.request, placement_request.software))
    )


def first_node(reasons: Sequence[NodeReason]) -> dict[str, Any]:
    """The params that name one node's reason: if possible of one that has what is asked for, or the home."""
    if not reasons:
        return {"node": "", "node_reason": None, "more_nodes": 0}
    at_home = next((each for each in reasons if each[1].code != PlacementCode.HOME_ELSEWHERE), reasons[0])
    node, reason = next((each for each in reasons if each[1].code not in NOT_SUITED), at_home)
    return {"node": node, "node_reason": reason.as_json(), "more_nodes": len(reasons) - 1}


def as_data(blocker: Blocker) -> dict[str, Any]:
    """The blocker as the API shows it and a workspace keeps it; teams by their short names."""
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
        # What overruns is expected to go on for a while: the same moment is said until that is over too.
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
