"""Applies nodes' reports about workspaces that exceed their share of a GPU's memory.

Reports are stored with the workspace for its page (`workspaces.share_overuse`), added to its timeline, and
sent to its owner. The number of entries and notifications per hour and workspace is limited.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext

from portal.common.actors import SYSTEM
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.fleet.inventory.cordons import display_name
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.workspaces.codes import ShareCode
from portal.workspaces.models import Workspace, WorkspaceStatus
from portal.workspaces.share_overuse import OVER
from portal.workspaces.transitions import lock_workspace
from provisioning.share_messages import ShareNote, ShareNotes, ShareStep
from provisioning.types import WHOLE_DEVICE_MILLI

log = logging.getLogger(__name__)
NOTICE = "workspace.gpu_share"
MAX_NOTES = {
    AuditKind.WORKSPACE_GPU_SHARE_EXCEEDED: 6,
    AuditKind.WORKSPACE_GPU_SHARE_ENDED: 20,
    AuditKind.WORKSPACE_GPU_SHARE_UNKNOWN: 6,
}
"""Maximum number of entries and notifications per kind, hour and workspace."""
WITHIN = timedelta(hours=1)
MAX_ENDS_IN_S = 3600
MAX_NAME_LENGTH = 64
CODES = {
    ShareStep.OVER: ShareCode.OVER,
    ShareStep.ASKED: ShareCode.ASKED,
    ShareStep.KILLED: ShareCode.KILLED,
    ShareStep.BACK: ShareCode.BACK,
    ShareStep.UNKNOWN: ShareCode.UNKNOWN,
}
KINDS = {
    ShareCode.OVER: AuditKind.WORKSPACE_GPU_SHARE_EXCEEDED,
    ShareCode.ASKED: AuditKind.WORKSPACE_GPU_SHARE_ENDED,
    ShareCode.KILLED: AuditKind.WORKSPACE_GPU_SHARE_ENDED,
    ShareCode.BACK: AuditKind.WORKSPACE_GPU_SHARE_BACK,
    ShareCode.UNKNOWN: AuditKind.WORKSPACE_GPU_SHARE_UNKNOWN,
}
MESSAGES = {
    ShareCode.OVER: "found that the workspace uses more memory than its share of %s",
    ShareCode.ASKED: "asked a process of the workspace to exit on %s",
    ShareCode.KILLED: "killed a process of the workspace on %s",
    ShareCode.BACK: "found that the workspace is within its share of %s again",
    ShareCode.UNKNOWN: "could not limit the workspace to its share of %s",
}
Grants = Mapping[tuple[str, int, str], tuple[UUID, Device]]


def apply(report: ShareNotes) -> int:
    """Apply reports about workspaces with a share of a device on the node, and return their number.

    Logs and ignores invalid reports. A repeated report only updates the time.
    """
    grants = _grants(report)
    by_workspace: dict[UUID, list[tuple[ShareNote, Device]]] = {}
    for note in report.notes:
        grant = grants.get((note.workspace_id, note.generation, note.uuid))
        if grant is None or not _is_plausible(note):
            node, step = (text.encode("unicode_escape").decode() for text in (report.node, note.step))
            log.warning("ignored note about a shared GPU (%s) from %s", step, node)
            continue
        workspace_id, device = grant
        by_workspace.setdefault(workspace_id, []).append((note, device))
    return sum(_apply_to_workspace(key, by_workspace[key]) for key in sorted(by_workspace))


def _grants(report: ShareNotes) -> Grants:
    """Return the shares on the node by workspace, generation and device."""
    rows = AllocatedDevice.objects.filter(
        active=True,
        milli__lt=WHOLE_DEVICE_MILLI,
        device__node__name=report.node,
        device__node__pool__deleted_at=None,
        device__uuid__in={note.uuid for note in report.notes},
    ).select_related("allocation", "device__node")
    if report.pool:
        rows = rows.filter(device__node__pool__slug=report.pool)
    return {
        (str(row.allocation.workspace_id), row.allocation.generation, row.device.uuid): (
            row.allocation.workspace_id,
            row.device,
        )
        for row in rows
    }


def _is_plausible(note: ShareNote) -> bool:
    """Return whether the report is plausible."""
    if note.step not in CODES:
        return False
    over = note.used_mib > note.part_mib
    return over or note.step in (ShareStep.BACK, ShareStep.UNKNOWN)


@transaction.atomic
def _apply_to_workspace(workspace_id: UUID, notes: Iterable[tuple[ShareNote, Device]]) -> int:
    try:
        workspace = lock_workspace(workspace_id)
    except NotFound:
        return 0
    status = WorkspaceStatus.objects.select_for_update().get(pk=workspace_id)
    shares: dict[str, Any] = status.gpu_shares
    if shares.get("generation") != workspace.generation:
        shares = {"generation": workspace.generation, "devices": {}, "notified_at": {}}
    counted = 0
    for note, device in notes:
        if note.generation == workspace.generation:
            _apply_note(workspace, shares, note, device)
            counted += 1
    if counted:
        status.gpu_shares = shares
        status.save(update_fields=["gpu_shares"])
        transaction.on_commit(partial(live.publish, workspace.pk, workspace.owner_id, NOTICE))
    return counted


def _apply_note(workspace: Workspace, shares: dict[str, Any], note: ShareNote, device: Device) -> None:
    now = timezone.now()
    code = CODES[ShareStep(note.step)]
    before: Mapping[str, Any] = shares["devices"].get(device.uuid, {})
    previous = ShareCode(before["code"]) if before else ShareCode.BACK
    continues = previous in OVER and code in OVER
    reason = Reason(code, _params(note, device, code))
    notified = bool(before.get("notified"))
    if code in (ShareCode.ASKED, ShareCode.KILLED) or (code is not previous and not continues):
        # Report the end only if the overuse was reported.
        may = notified if code is ShareCode.BACK else _has_room(shares["notified_at"], KINDS[code], now)
        if may:
            _record(workspace, device, reason)
        if code in OVER:
            notified = may or (notified and continues)
    ends = code is ShareCode.OVER and note.ends_in_s
    shares["devices"][device.uuid] = {
        "code": code.value,
        "params": dict(reason.params),
        "since": before["since"] if continues or (code is previous and before) else now.isoformat(),
        "at": now.isoformat(),
        "ends_at": (now + timedelta(seconds=min(note.ends_in_s, MAX_ENDS_IN_S))).isoformat() if ends else "",
        "notified": notified and code in OVER,
    }


def _params(note: ShareNote, device: Device, code: ShareCode) -> dict[str, Any]:
    params: dict[str, Any] = {
        "device": display_name(device),
        "uuid": device.uuid,
        "used_mib": min(note.used_mib, device.memory_mib),
        "part_mib": min(note.part_mib, device.memory_mib),
    }
    if code is ShareCode.OVER:
        params["ends_in_s"] = min(note.ends_in_s, MAX_ENDS_IN_S)
    if code in (ShareCode.ASKED, ShareCode.KILLED):
        params["process"] = display_process_name(note.process)
    return params


def display_process_name(process: str) -> str:
    """Return a program's name for display: printable and short, because programs choose their names."""
    return "".join(
        character if character.isprintable() else "?" for character in process[:MAX_NAME_LENGTH]
    ).strip()


def _has_room(sent_at: dict[str, list[float]], kind: AuditKind, now: datetime) -> bool:
    """Count an entry of this kind, and return whether the hourly limit allows the entry."""
    at = now.timestamp()
    recent = [sent for sent in sent_at.get(kind, []) if at - WITHIN.total_seconds() < sent <= at]
    room = len(recent) < MAX_NOTES[kind]
    sent_at[kind.value] = [*recent, at] if room else recent
    return room


def _record(workspace: Workspace, device: Device, reason: Reason) -> None:
    code = ShareCode(reason.code)
    events.record(
        actor=SYSTEM,
        kind=KINDS[code],
        workspace=workspace,
        pool=device.node.pool,
        message=MESSAGES[code] % display_name(device),
        cause=reason.as_json(),
        targets=[Target(TargetKind.DEVICE, device.uuid)],
        data={"code": code.value, **reason.params},
    )
    title = _title(code)
    if not title:
        return
    events.notify(
        [workspace.owner],
        kind=NOTICE,
        title=title % {"workspace": workspace.name},
        body=sentence_of(reason),
        url=f"/workspaces/{workspace.pk}/",
    )


def _title(code: ShareCode) -> str:
    """Return the title of the owner's notification, or an empty string if no action is needed.

    Each step has its own title, because equal notifications within seconds are merged, and a process is
    killed only seconds after it was asked to end.
    """
    match code:
        case ShareCode.OVER:
            return gettext("%(workspace)s uses more than its share of GPU memory")
        case ShareCode.ASKED:
            return gettext("A process of %(workspace)s was asked to exit: too much GPU memory")
        case ShareCode.KILLED:
            return gettext("A process of %(workspace)s was ended: too much GPU memory")
        case _:
            return ""
