"""Observes all workspaces of an engine's pool with one call.

Between complete lists, an engine reports only changes if its driver can. An answer without the pool's current
lease is ignored. Answers do not apply to workspaces with a command in flight, or to those launched after the
request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal.common.errors import NotFound, StateConflict
from portal.fleet.inventory import node_messages
from portal.fleet.inventory.models import Pool
from portal.fleet.inventory.node_messages import received
from portal.workspaces import engine_queue, reconcile, results
from portal.workspaces.lifecycle import State
from portal.workspaces.models import PoolObservation, Workspace, WorkspaceStatus
from portal.workspaces.transitions import lock_workspace
from provisioning.traits import Placing
from provisioning.types import Failure, Observation, Observations, ObservedState, Op, WorkspaceRef

log = logging.getLogger(__name__)
LIMITS_CHECKED_EVERY = timedelta(seconds=15)
"""Interval between two checks of a starting workspace's time limit."""
BATCH = 500
OBSERVED = (State.PROVISIONING, State.RUNNING)
_COLUMNS = ("pk", "generation", "state", "endpoint", "began_at", "status__reason", "status__engine")


@dataclass(frozen=True, slots=True)
class _Known:
    """The stored state of an observed workspace."""

    pk: UUID
    generation: int
    state: str
    endpoint: str
    began_at: datetime | None
    reason: Mapping[str, Any]
    engine: Mapping[str, Any]

    def is_news(self, seen: Observation, *, engine_places: bool) -> bool:
        """Return whether the observation may change the workspace."""
        if seen.ref.generation != self.generation:
            return True
        if seen.state is ObservedState.UNKNOWN and self.state == State.RUNNING:
            return results.unknown_reason(seen).as_json() != self.reason
        if engine_places and seen.state is not ObservedState.UNKNOWN:
            if engine_queue.is_news(self.engine, self.began_at, seen):
                return True
            if seen.state is ObservedState.QUEUED:
                return False
        usual = ObservedState.STARTING if self.state == State.PROVISIONING else ObservedState.RUNNING
        return seen.state is not usual or seen.endpoint not in ("", self.endpoint)


def apply_answer(
    pool_slug: str, lease: str, observed: dict[str, Any] | None, failure: dict[str, Any] | None
) -> None:
    """Apply an answer from an engine's worker. Ignores answers about deleted pools."""
    pool = Pool.objects.filter(slug=pool_slug, deleted_at=None).first()
    if pool is None or not node_messages.is_from_pool_node(pool):
        return
    of = f"the pool {pool.slug}"
    if observed is not None:
        answer = received(observed, Observations, of=of)
        if answer is not None:
            apply(pool=pool, lease=lease, observed=answer)
    elif failure is not None:
        refused = received(failure, Failure, of=of)
        if refused is not None:
            apply(pool=pool, lease=lease, failure=refused)


def apply(
    *, pool: Pool, lease: str, observed: Observations | None = None, failure: Failure | None = None
) -> bool:
    """Apply an answer. Returns False if it is stale and was dropped."""
    row = PoolObservation.objects.filter(pool=pool, lease=lease).first() if lease else None
    if row is None:
        return False
    changes: dict[str, Any] = {"lease": "", "failures": row.failures + 1}
    if observed is not None:
        changes = {"lease": "", "failures": 0}
        if observed.complete:
            changes["listed_at"] = row.asked_at
    if not PoolObservation.objects.filter(pool=pool, lease=lease).update(**changes):
        return False
    if observed is not None:
        # If some observations could not be applied, keep the cursor, so that the next answer repeats them.
        if _apply_observations(pool, row.asked_at, observed):
            PoolObservation.objects.filter(pool=pool).update(cursor=observed.cursor)
    elif failure is not None:
        _apply_failure(pool, row.failures + 1, failure)
    return True


def _rows(pool: Pool) -> QuerySet[Workspace]:
    """Return the pool's workspaces to observe, except those with a command in flight."""
    return Workspace.objects.filter(pool=pool, state__in=OBSERVED, lease="", launched_at__isnull=False)


def _apply_observations(pool: Pool, asked_at: datetime, observed: Observations) -> bool:
    """Apply the observations of known workspaces. Returns False if some have to be repeated later."""
    listed = {seen.ref.workspace_id: seen for seen in observed.listed}
    known = [
        _Known(*values) for values in _rows(pool).filter(launched_at__lte=asked_at).values_list(*_COLUMNS)
    ]
    engine_places = pool.traits.placing is Placing.ENGINE
    news: list[tuple[_Known, Observation]] = []
    fine: list[UUID] = []
    for workspace in known:
        seen = listed.get(str(workspace.pk))
        if seen is None and observed.complete:
            ref = WorkspaceRef(str(workspace.pk), workspace.generation)
            seen = Observation(ref, ObservedState.ABSENT)
        if seen is not None and workspace.is_news(seen, engine_places=engine_places):
            news.append((workspace, seen))
        elif seen is not None and seen.state is not ObservedState.UNKNOWN and workspace.reason:
            fine.append(workspace.pk)
    starting = Workspace.objects.filter(pool=pool, state=State.PROVISIONING).values_list("pk", flat=True)
    applied = not any(str(pk) in listed for pk in set(starting) - {workspace.pk for workspace in known})
    _forget_reasons(fine)
    for workspace, seen in news:
        try:
            _apply_one(workspace, seen)
        except Exception:
            # One broken row must not block the others.
            log.exception("applying the observation of workspace %s failed", workspace.pk)
            applied = False
    _plan_next(pool)
    return applied


def _plan_next(pool: Pool) -> None:
    """Plan the next observation if workspaces start, including those launched after the request."""
    starting = _rows(pool).filter(state=State.PROVISIONING)
    now = timezone.now()
    due_at = now + timedelta(seconds=pool.traits.starting_observe_s)
    # Check time limits less often than the engine, except for workspaces about to be preempted.
    rested = starting.filter(preemption=None).update(next_reconcile_at=now + LIMITS_CHECKED_EVERY)
    if starting.exclude(preemption=None).update(next_reconcile_at=due_at) or rested:
        PoolObservation.objects.filter(pool=pool).update(due_at=due_at)


@transaction.atomic
def _apply_one(known: _Known, seen: Observation) -> None:
    try:
        workspace = lock_workspace(known.pk)
    except NotFound:
        return
    if workspace.lease or (workspace.generation, workspace.state) != (known.generation, known.state):
        return
    try:
        results.apply_observation(workspace, Op.OBSERVE, seen)
    except StateConflict:
        return


def _apply_failure(pool: Pool, failures: int, failure: Failure) -> None:
    reason = results.driver_reason(failure.code, failure.message).as_json()
    shown = WorkspaceStatus.objects.filter(workspace__in=_rows(pool)).exclude(reason=reason)
    shown.update(reason=reason)
    retry_at = timezone.now() + reconcile.backoff(failures)
    if _rows(pool).filter(state=State.PROVISIONING).update(next_reconcile_at=retry_at):
        PoolObservation.objects.filter(pool=pool).update(due_at=retry_at)


def _forget_reasons(keys: Sequence[UUID]) -> None:
    """Clear the problems of workspaces that were observed without one."""
    for part in _batches(keys):
        WorkspaceStatus.objects.filter(workspace__in=part).update(reason={})


def _batches(keys: Sequence[UUID]) -> Iterable[Sequence[UUID]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
