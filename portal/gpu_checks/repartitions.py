"""Changes of MIG layouts before a start.

A run stays open, and its GPU is excluded from placement, until an inventory shows the instances that its node
reported. The waiting workspace gets the instances in the same transaction.
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
    """Queue the layout changes of newly placed workspaces.

    The caller is a scheduling cycle: it holds the workspaces' locks and the right to allocate capacity.
    """
    by_key = {workspace.pk: workspace for workspace in workspaces}
    plans = {change.parent_uuid: (key, change) for key, group in changes.items() for change in group}
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


def current_repartitions(workspace: Workspace) -> QuerySet[GpuCheckRun]:
    """Return the changes for the workspace's current placement."""
    if workspace.placed_at is None:
        return GpuCheckRun.objects.none()
    return GpuCheckRun.objects.filter(
        workspace=workspace, kind=CheckKind.REPARTITION, created_at__gte=workspace.placed_at
    )


def runs_to_conclude(pool: Pool) -> list[UUID]:
    """Return the ids of a pool's open runs that nodes have reported as done."""
    rows = GpuCheckRun.objects.filter(
        kind=CheckKind.REPARTITION, state__in=OPEN, device__node__pool=pool
    ).exclude(report={})
    return list(rows.order_by("pk").values_list("pk", flat=True))
