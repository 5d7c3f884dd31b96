"""Devices that Berth has freed by stopping workspaces or releasing GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.fleet.inventory.models import AllocatedDevice
from portal.reclaim.passes import CODES

FREED_S = 86_400
"""Maximum seconds for which a freed device counts. Ends earlier if the workspace starts again."""
STOPS = frozenset(str(code.value) for code in CODES.values())


@dataclass(frozen=True, slots=True)
class Freed:
    """A device that was free for `seconds` because of a stop with this reason `code`.

    `milli` is the part of the device that the workspace had held, in thousandths.
    """

    device: UUID
    milli: int
    seconds: float
    code: str
    team: str
    user: str
    flavor: str


def freed_devices(begin_s: float, end_s: float) -> Iterator[Freed]:
    """Yield devices freed between two times (UTC seconds), for a day or until the workspace starts again.

    Two queries.
    """
    since = datetime.fromtimestamp(begin_s - FREED_S, UTC)
    stops: dict[UUID, list[tuple[float, str]]] = defaultdict(list)
    events = Event.objects.filter(
        kind=AuditKind.WORKSPACE_STOP, at__gte=since, at__lt=datetime.fromtimestamp(end_s, UTC)
    )
    for workspace, at, cause in events.values_list("workspace_id", "at", "cause"):
        if cause.get("code") in STOPS:
            stops[workspace].append((at.timestamp(), cause["code"]))
    if not stops:
        return
    allocations = _allocations(list(stops), since)
    for workspace, moments in stops.items():
        for at_s, code in moments:
            rows = allocations[workspace]
            starts = [granted_s for _device, _milli, granted_s, *_rest in rows if granted_s > at_s]
            until_s = min([at_s + FREED_S, end_s, *starts])
            for device, milli, granted_s, released_s, *holder_texts in rows:
                if granted_s > at_s or released_s is None or released_s < at_s:
                    continue
                lasted_s = until_s - max(released_s, begin_s)
                if lasted_s > 0:
                    yield Freed(device, milli, lasted_s, code, *(text or "" for text in holder_texts))


def _allocations(workspaces: list[UUID], since: datetime) -> dict[UUID, list[tuple[Any, ...]]]:
    """Return (device, milli, granted, released, team, user, flavor) by workspace, in Unix time."""
    rows = AllocatedDevice.objects.filter(
        Q(allocation__released_at=None) | Q(allocation__released_at__gt=since),
        allocation__workspace__in=workspaces,
        allocation__granted_at__isnull=False,
    ).order_by("allocation__granted_at")
    by_workspace: dict[UUID, list[tuple[Any, ...]]] = defaultdict(list)
    for workspace, device, milli, granted, released, *holder_texts in rows.values_list(
        "allocation__workspace_id",
        "device_id",
        "milli",
        "allocation__granted_at",
        "allocation__released_at",
        "allocation__workspace__team__slug",
        "allocation__workspace__owner__username",
        "allocation__flavor",
    ):
        assert granted is not None  # by the filter
        released_s = None if released is None else released.timestamp()
        by_workspace[workspace].append((device, milli, granted.timestamp(), released_s, *holder_texts))
    return by_workspace
