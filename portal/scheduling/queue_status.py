"""Writes the queue entries of pending workspaces: position, expected start, and blocker.

Thousands may wait, mostly for the same resources: blockers are computed once per distinct request, and only
changed rows are written. Each row has a digest of its content, so that long columns need not be read for
comparison.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from portal.catalog.models import Flavor
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import User
from portal.scheduling import blockers
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import WaitBasis
from portal.scheduling.engine.model import Eta, Outcome
from portal.scheduling.engine.outlook import Outlook, PendingOutlook
from portal.scheduling.placement_request import maintenance_end
from portal.scheduling.pool_nodes import PoolNodes
from portal.scheduling.snapshot import ClusterSnapshot, PendingWorkload
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry

MIN_ETA_CHANGE = timedelta(seconds=30)
"""Minimum change of an ETA that is written."""
MIN_ETA_CHANGE_PERCENT = 3
"""Minimum change of an ETA that is written, in percent of the remaining time: the accuracy of ETAs."""
BATCH = 500
POSITION_COLUMNS = ("position",)
ETA_COLUMNS = ("eta_at", "eta_basis")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The queue's decision on a pending workspace, as users see it."""

    outcome: Outcome
    reason: Reason
    position: int | None = None
    eta_at: datetime | None = None
    basis: Reason | None = None
    blocker: Mapping[str, Any] | None = None
    rule: Rule | None = None
    member_order: Reason | None = None
    flavor: Flavor | None = None
    next_flavor: Reason | None = None


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Changed columns of one row."""

    pk: UUID
    values: Mapping[str, Any]


def status_of(snapshot: ClusterSnapshot, pending: PendingWorkload, outlook: Outlook) -> QueueStatus:
    """Return the status of a pending workload after the decision of the outlook's scheduler."""
    return _Statuses(snapshot, outlook).get(pending)


class _Statuses:
    """The statuses of one snapshot, cached per distinct request."""

    def __init__(self, snapshot: ClusterSnapshot, outlook: Outlook) -> None:
        self._snapshot = snapshot
        self._outlook = outlook
        self._alike: dict[object, QueueStatus] = {}
        self._digests: dict[object, str] = {}
        self._usernames: dict[str, str] | None = None

    def get(self, pending: PendingWorkload) -> QueueStatus:
        if not self._queued(pending):
            return self._unqueued(pending)
        pending_outlook = self._outlook.of(pending.id)
        kind = self._outlook.blocker_key(pending.id)
        alike = self._alike.get(kind)
        if alike is None:
            blocker = blockers.with_known_ends(pending_outlook.blocker, pending.placement_request)
            alike = self._alike[kind] = QueueStatus(
                Outcome.NEEDS_APPROVAL if pending_outlook.needs_change else Outcome.QUEUED,
                blockers.blocker_reason(
                    self._snapshot,
                    pending.workload,
                    blocker,
                    placement_request=pending.placement_request,
                ),
                blocker=blockers.as_data(blocker),
                rule=pending_outlook.blocker.rule,
            )
        eta = pending_outlook.eta
        closed = None if pending_outlook.needs_change else pending.maintenance
        if closed is not None:
            return self._in_maintenance(pending, closed, pending_outlook)
        status = replace(
            alike,
            position=pending_outlook.position,
            eta_at=to_datetime_or_none(eta.eta_s) if eta else None,
            basis=eta.basis if eta else None,
            member_order=None if pending_outlook.needs_change else self._member_order(pending),
        )
        if not pending.choices or eta is None:
            return status
        by_choice = self._outlook.by_choice(pending.id)
        expected = eta if pending.workload.fallbacks else by_choice[0]
        flavor = pending.choices[expected.choice].flavor
        return replace(status, flavor=flavor, next_flavor=_next_flavor(pending, by_choice, expected))

    def _in_maintenance(
        self, pending: PendingWorkload, pool: PoolNodes, pending_outlook: PendingOutlook
    ) -> QueueStatus:
        """Return the status of a request that starts after the maintenance of its pools."""
        until, eta = maintenance_end(pool), pending_outlook.eta
        expected = to_datetime_or_none(eta.eta_s) if eta else None
        return QueueStatus(
            Outcome.QUEUED,
            blockers.maintenance_reason(pool),
            position=pending_outlook.position,
            eta_at=max(until, expected or until),
            basis=Reason(WaitBasis.MAINTENANCE_ENDS),
            member_order=self._member_order(pending),
        )

    def _member_order(self, pending: PendingWorkload) -> Reason | None:
        """Return how the members' use changes the request's position, with the other member's username."""
        reason = self._outlook.member_order_of(pending.id)
        if reason is None:
            return None
        if self._usernames is None:
            users = {item.workload.user for item in self._snapshot.pending_workloads.values()}
            waiting = [UUID(user) for user in users if user]
            names = User.objects.filter(pk__in=waiting).values_list("pk", "username")
            self._usernames = {str(pk): username for pk, username in names}
        return Reason(reason.code, {"member": self._usernames.get(reason.params["member"], "")})

    def digest_of(self, pending: PendingWorkload, status: QueueStatus) -> str:
        """Return the digest of everything except the position and the time of the ETA."""
        basis = status.basis
        if basis is not None and status.eta_at is None:
            code: object = json.dumps(basis.as_json(), sort_keys=True)
        else:
            # Ignore the numbers of the estimate, which are written when its time changes.
            code = basis.code if basis is not None else ""
        kind = self._outlook.blocker_key(pending.id) if self._queued(pending) else pending.id
        if status.basis is not None and status.basis.code is WaitBasis.MAINTENANCE_ENDS:
            kind = str(status.reason.as_json())
        member_order = status.member_order.as_json() if status.member_order is not None else {}
        next_flavor = status.next_flavor.as_json() if status.next_flavor is not None else {}
        key = (kind, code, str(member_order), str(next_flavor))
        digest = self._digests.get(key)
        if digest is None:
            parts = [
                *(status.outcome.value, status.reason.as_json(), dict(status.blocker or {}), str(code)),
                *(member_order, next_flavor),
            ]
            text = json.dumps(parts, sort_keys=True)
            digest = self._digests[key] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return digest

    def _queued(self, pending: PendingWorkload) -> bool:
        return not pending.reason and pending.id in self._snapshot.scheduler.pending.items

    def _unqueued(self, pending: PendingWorkload) -> QueueStatus:
        if pending.reason:
            return QueueStatus(Outcome.QUEUED, blockers.no_capacity_reason(pending.placement_request))
        return QueueStatus(Outcome.QUEUED, Reason(AdmissionCode.LOOKED_AT_AGAIN))


def _next_flavor(pending: PendingWorkload, etas: Sequence[Eta], expected: Eta) -> Reason:
    """Return which of the listed flavors a request is expected to start on, and why."""
    names = {choice.workload.choice: choice.flavor.name for choice in pending.choices}
    flavor, first = names[expected.choice], names[pending.workload.choice]
    if expected.eta_s is None:
        flavors = [names[eta.choice] for eta in etas]
        if len(flavors) > 1:
            return Reason(AdmissionCode.FLAVOR_OPEN, {"flavors": flavors})
        return Reason(AdmissionCode.FLAVOR_FIRST, {"flavor": flavor})
    soonest = min((eta for eta in etas if eta.eta_s is not None), key=lambda eta: eta.eta_s or 0)
    if soonest.eta_s != expected.eta_s:
        minutes = pending.workload.start_within_s // 60
        sooner = {"flavor": flavor, "sooner": names[soonest.choice], "minutes": minutes}
        return Reason(AdmissionCode.FLAVOR_WITHIN, sooner)
    if expected.choice != pending.workload.choice:
        return Reason(AdmissionCode.FLAVOR_LATER, {"flavor": flavor, "first": first})
    return Reason(AdmissionCode.FLAVOR_FIRST, {"flavor": flavor})


def update(snapshot: ClusterSnapshot, outlook: Outlook | None = None) -> None:
    """Write the changed statuses of all pending workloads."""
    write(changes(snapshot, outlook))


def changes(
    snapshot: ClusterSnapshot, outlook: Outlook | None = None, only: str | None = None
) -> list[StatusChange]:
    """Return the changes that update the rows of all pending workloads, or `only` of one.

    Writes nothing. `outlook` must belong to the snapshot's current scheduler.
    """
    if not snapshot.pending_workloads:
        return []
    outlook = outlook or Outlook(snapshot.scheduler)
    rows = QueueEntry.objects.filter(workspace__state=State.PENDING)
    if only is not None:
        rows = rows.filter(workspace=UUID(only))
    else:
        outlook.compute_all()
    statuses = _Statuses(snapshot, outlook)
    changed = []
    for pk, place, eta_at, digest in rows.values_list("pk", "position", "eta_at", "digest"):
        pending = snapshot.pending_workloads.get(str(pk))
        if pending is None:
            continue
        status = statuses.get(pending)
        values: dict[str, Any] = {}
        if status.position != place:
            values["position"] = status.position
        now = statuses.digest_of(pending, status)
        if now != digest or _eta_changed(status.eta_at, eta_at, snapshot.now):
            values["eta_at"] = status.eta_at
            values["eta_basis"] = status.basis.as_json() if status.basis else {}
        if now != digest:
            values["outcome"] = status.outcome.value
            values["reason"] = status.reason.as_json()
            values["blocker"] = dict(status.blocker or {})
            values["member_order"] = status.member_order.as_json() if status.member_order else {}
            values["next_flavor"] = status.next_flavor.as_json() if status.next_flavor else {}
            values["digest"] = now
        if values:
            changed.append(StatusChange(pk, values))
    return changed


def _eta_changed(new: datetime | None, old: datetime | None, now: datetime) -> bool:
    """Return whether an ETA has changed by more than its accuracy."""
    if new is None or old is None:
        return new is not old
    return abs(new - old) >= max(MIN_ETA_CHANGE, (old - now) * MIN_ETA_CHANGE_PERCENT / 100)


def write(changes: Iterable[StatusChange]) -> None:
    """Write changes of rows that are still pending. Skips locked rows until the next time.

    Outside a transaction, each batch is committed separately.
    """
    ordered = iter(sorted(changes, key=lambda change: change.pk))
    while batch := list(islice(ordered, BATCH)):
        with transaction.atomic():
            waiting = QueueEntry.objects.select_for_update(of=("self",), skip_locked=True).filter(
                pk__in=[change.pk for change in batch], workspace__state=State.PENDING
            )
            still_pending = set(waiting.values_list("pk", flat=True))
            by_columns: dict[tuple[str, ...], list[StatusChange]] = {}
            for change in batch:
                if change.pk in still_pending:
                    by_columns.setdefault(tuple(change.values), []).append(change)
            for columns, group in by_columns.items():
                _write_columns(columns, group)


def _write_columns(columns: Sequence[str], changes: Collection[StatusChange]) -> None:
    """Update many rows with one statement, which is built 10 times faster than that of `bulk_update`."""
    by_name = {field.name: field for field in QueueEntry._meta.concrete_fields}
    fields, key = [by_name[name] for name in columns], by_name["workspace"]
    quote = connection.ops.quote_name
    sets = ", ".join(f"{quote(field.name)} = %s" for field in fields)
    table, own = quote(QueueEntry._meta.db_table), quote(key.attname)
    rows = []
    for change in changes:
        row = [
            field.get_db_prep_save(value, connection)
            for field, value in zip(fields, change.values.values(), strict=True)
        ]
        rows.append([*row, key.get_db_prep_save(change.pk, connection)])
    with connection.cursor() as cursor:
        # All names are from the model.
        cursor.executemany(f"UPDATE {table} SET {sets} WHERE {own} = %s", rows)  # noqa: S608


def to_datetime(seconds: int) -> datetime:
    """Return UTC seconds as a datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def to_datetime_or_none(seconds: int | None) -> datetime | None:
    return None if seconds is None else to_datetime(seconds)
