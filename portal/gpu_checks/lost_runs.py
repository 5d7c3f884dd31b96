"""Handles runs without an answer."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from portal.gpu_checks import peers, results, runs
from portal.gpu_checks.models import OPEN, GpuCheckRun


def sweep_lost() -> int:
    """Repeat runs without an answer, give up after the last attempt, and return the number of lost runs."""
    now = timezone.now()
    nodes: set[UUID] = set()
    lost = 0
    late = GpuCheckRun.objects.filter(state__in=OPEN).filter(
        Q(lease="") | Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    )
    for run_id, node_id in late.values_list("pk", "device__node_id"):
        nodes.add(node_id)
        lost += results.handle_missing_answer(run_id)
    for node_id in sorted(nodes):
        runs.send_waiting(node_id)
    # Free devices that are reserved without a run, because rows of runs can be deleted.
    peers.release_unused(list(peers.unused_reservations().values_list("pk", flat=True)))
    return lost
