"""Changes of MIG layouts before a start: the run of one, and which of them are to be concluded.

A run stays open, and with it its GPU out of placement, until an inventory has shown the instances that its
node says it made. The workspace that waits gets them in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.db.models import QuerySet

from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Device, Pool
from portal.gpu_checks.kinds.repartition import plan_of
from portal.gpu_checks.models import OPEN, CheckCause, CheckKind, GpuCheckRun
from portal.gpu_checks.runs import make_run
from portal.workspaces.models import Workspace
from provisioning.types import MigRepartition


def begin(changes: Mapping[UUID, Sequence[MigRepartition]], workspaces: Iterable[Workspace]) -> None:
    """Queue the changes that workspaces which have just got their place wait for.

    The caller is a cycle: it holds the workspaces' locks and the right to grant capacity.
    """
    by_key = {each.pk: each for each in workspaces}
    plans = {change.parent_uuid: (key, change) for key, its in changes.items() for change in its}
    rows = (
        Device.objects.select_for_update(of=("self",))
        .select_related("node", "node__pool")
        .filter(uuid__in=plans)
        .order_by("pk")
    )
    for device in rows:
        key, change = plans[device.uuid]
        make_run(
            actor=SYSTEM,
            device=device,
            kind=CheckKind.REPARTITION,
            cause=CheckCause.HAND_OUT,
            workspace=by_key[key],
            plan=plan_of(change),
        )


def of(workspace: Workspace) -> QuerySet[GpuCheckRun]:
    """The changes for the workspace's present place."""
    if workspace.placed_at is None:
        return GpuCheckRun.objects.none()
    return GpuCheckRun.objects.filter(
        workspace=workspace, kind=CheckKind.REPARTITION, created_at__gte=workspace.placed_at
    )


def to_conclude(pool: Pool) -> list[UUID]:
    """The open runs of a pool of which a node has said that they are done."""
    found = GpuCheckRun.objects.filter(
        kind=CheckKind.REPARTITION, state__in=OPEN, device__node__pool=pool
    ).exclude(report={})
    return list(found.order_by("pk").values_list("pk", flat=True))
