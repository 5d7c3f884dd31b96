"""Taking in what nodes say about checks and scrubs, and acting upon it: once, and never on a wrong report."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.domain_events import emit
from portal.common.errors import NotFound
from portal.common.events import live
from portal.common.reasons.codes import CheckCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.texts import strip_nul, strip_nul_json
from portal.fleet.inventory import node_messages
from portal.fleet.inventory.cordons import cordon_device, display_name, lift_cordon, notify_operators
from portal.fleet.inventory.domain_events import InventoryApplied, NodesChanged
from portal.fleet.inventory.models import CordonCause, Device
from portal.gpu_checks import pairs, repartitions, report_reader, resets
from portal.gpu_checks.domain_events import HandOutCheckEnded
from portal.gpu_checks.models import CheckCause, CheckKind, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.runs import (
    MAX_ATTEMPTS,
    NOUN,
    SILENT_S,
    end,
    hard_limit,
    locked_run,
    record,
    send_on_commit,
)
from portal.workspaces.models import Workspace
from portal.workspaces.transitions import locked
from provisioning.check_messages import CheckAnswer
from provisioning.types import DeviceKind

CAUSE = {
    CheckKind.CHECK: CordonCause.CHECK,
    CheckKind.PAIR: CordonCause.CHECK,
    CheckKind.SCRUB: CordonCause.SCRUB,
}
MAX_PROGRESS_LENGTH = 500


def of_its_node(run: str, lease: str) -> bool:
    """Whether the message comes from the node that was asked, under the run's present lease."""
    try:
        found = GpuCheckRun.objects.filter(pk=UUID(run), lease=lease).select_related("device__node__pool")
    except ValueError:
        return False
    held = found.first() if lease else None
    return held is not None and node_messages.is_of(held.device.node.pool, held.device.node.name)


def apply_progress(*, run_id: UUID, lease: str, progress: dict[str, Any]) -> bool:
    """Note how far a run has come, and that its node is alive; False when it is stale and was dropped."""
    if not lease:
        return False
    now = timezone.now()
    fields: dict[str, Any] = {
        "state": RunState.RUNNING,
        "lease_expires_at": now + timedelta(seconds=SILENT_S),
        "progress": _progress(progress),
    }
    its = GpuCheckRun.objects.filter(pk=run_id, lease=lease)
    if its.filter(state=RunState.QUEUED).update(**fields, started_at=now):
        live.publish_check(run_id)
        return True
    run = its.filter(state=RunState.RUNNING).only("kind", "level", "started_at").first()
    if run is None or _too_long(run, now):
        # One that tells for ever that it goes on is given up too, when its lease has run out.
        return False
    if not its.filter(state=RunState.RUNNING).update(**fields):
        return False
    live.publish_check(run_id)
    return True


def _too_long(run: GpuCheckRun, now: datetime) -> bool:
    return run.started_at is not None and now - run.started_at > hard_limit(run)


def _progress(sent: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name in ("phase", "test", "text"):
        kept[name] = strip_nul(str(sent.get(name, "")))[:MAX_PROGRESS_LENGTH]
    for name in ("done", "total", "elapsed_ms"):
        value = sent.get(name, 0)
        whole = isinstance(value, int) and not isinstance(value, bool)
        kept[name] = min(max(value, 0), 2**31) if whole else 0
    return kept


def apply_answer(answer: CheckAnswer) -> bool:
    """Take in how a run ended; False when the answer is stale, or about something else, and was dropped."""
    try:
        run_id = UUID(answer.run)
    except ValueError:
        return False
    with transaction.atomic():
        workspace = _lock_waiting(run_id)
        try:
            run = locked_run(run_id)
        except NotFound:
            return False
        if not answer.lease or run.lease != answer.lease or not run.open or run.kind != answer.kind:
            return False
        if run.kind == CheckKind.REPARTITION:
            repartitions.answered(run, answer)
            # It has failed; or what it made is known already, when this is said a second time.
            if not run.open or repartitions.conclude(run, workspace):
                _hand_out(run, workspace)
            return True
        if run.kind == CheckKind.RESET:
            resets.answered(run, answer)
            return True
        if run.started_at is None:
            run.started_at = timezone.now()
        reading_of = report_reader.of_scrub if run.kind == CheckKind.SCRUB else report_reader.of_check
        found = reading_of(answer, run)
        end(
            run,
            RunState.DONE,
            started_at=run.started_at,
            verdict=found.verdict,
            recovery=found.action,
            summary=strip_nul(found.summary)[:2000],
            report=strip_nul_json(found.report),
            measures=found.measures,
            unjudged=found.unjudged,
        )
        if run.kind == CheckKind.PAIR:
            _act_on_link(run, found)
            return True
        _act(run, found)
        _tell_of_peers(run, found)
        _hand_out(run, workspace)
    return True


def inventory_applied(event: InventoryApplied) -> None:
    """Changes of MIG layouts that the inventory shows are done. Each in a transaction of its own."""
    for run_id in repartitions.to_conclude(event.pool):
        conclude_change(run_id)


@transaction.atomic
def conclude_change(run_id: UUID) -> bool:
    """End a change of a MIG layout if it is seen to be done; whether it has ended by now."""
    workspace = _lock_waiting(run_id)
    try:
        run = locked_run(run_id)
    except NotFound:
        return True
    if not repartitions.conclude(run, workspace):
        return not run.open
    _hand_out(run, workspace)
    return True


def silent(run_id: UUID) -> bool:
    """Nobody answers for an open run: it is sent again, or it is lost; whether it is lost now."""
    now = timezone.now()
    with transaction.atomic():
        workspace = _lock_waiting(run_id)
        try:
            run = locked_run(run_id)
        except NotFound:
            return False
        if not run.open or (run.lease and run.lease_expires_at and run.lease_expires_at > now):
            return False
        # Of a reset that has begun nobody knows how far it has come: it is not done a second time.
        # Nor is an end of a link: by then nobody waits at the other.
        once = run.kind == CheckKind.PAIR or (run.kind == CheckKind.RESET and run.started_at is not None)
        if run.attempts < MAX_ATTEMPTS and not once and not _too_long(run, now):
            # What comes under the old lease from now on is too late.
            run.state, run.lease = RunState.QUEUED, ""
            run.lease_expires_at = run.started_at = None
            run.save(update_fields=["state", "lease", "lease_expires_at", "started_at"])
            send_on_commit(run.device.node_id)
            return False
        give_up(run, Reason(CheckCode.NODE_NOT_ANSWERING, {"node": run.device.node.name}))
        _hand_out(run, workspace)
    return True


def give_up(run: GpuCheckRun, reason: Reason) -> None:
    """Close a locked run without a result: what is not known is no pass."""
    device, noun, why = run.device, NOUN[CheckKind(run.kind)], sentence_of(reason)
    end(run, RunState.LOST, summary=why)
    record(run, device, "lost", f"has no result of the {noun} of {display_name(device)}: {why}")
    if run.kind == CheckKind.REPARTITION:
        repartitions.lost(run)
        return
    if run.kind == CheckKind.RESET:
        resets.lost(run)
        return
    if run.kind == CheckKind.PAIR:
        pairs.concluded(run)
        return
    _unproven(run, f"Its {noun} was lost: {why}")


# --- what follows ----------------------------------------------------------------------------------


def _lock_waiting(run_id: UUID) -> Workspace | None:
    """The workspace that waits for this run, if one does, under its lock."""
    waits = GpuCheckRun.objects.filter(pk=run_id).values_list("workspace_id", flat=True).first()
    if waits is None:
        return None
    try:
        return locked(waits)
    except NotFound:
        return None


def _hand_out(run: GpuCheckRun, workspace: Workspace | None) -> None:
    if workspace is not None and run.cause == CheckCause.HAND_OUT:
        emit(HandOutCheckEnded(workspace))


def _act(run: GpuCheckRun, found: report_reader.Reading) -> None:
    device, name, noun = run.device, display_name(run.device), NOUN[CheckKind(run.kind)]
    match found.verdict:
        case CheckVerdict.PASS:
            record(run, device, "passed", f"finds that {name} passes its {noun}")
            _passed(run, found)
        case CheckVerdict.DEGRADED:
            _warn(device, run.summary)
            record(run, device, "degraded", f"finds {name} degraded: {run.summary}")
            notify_operators(device, "device.check_degraded", f"{name} is degraded", run.summary)
        case CheckVerdict.FAIL | CheckVerdict.HUNG:
            word = "failed" if found.verdict == CheckVerdict.FAIL else "hung"
            record(run, device, word, f"finds that the {noun} of {name} {word}: {run.summary}")
            _cordon(run, device, run.summary, found.action)
            if device.kind == DeviceKind.MIG and found.of_the_parent:
                _cordon_parent(run, found.action)
        case _:
            if not _notified_before(run):
                record(run, device, "inconclusive", f"could not {noun} {name}: {run.summary}")
            _unproven(run, run.summary)


def _act_on_link(run: GpuCheckRun, found: report_reader.Reading) -> None:
    """What an end of a link has seen. Only what the driver says of the device itself takes it out.

    It proves no device, and warns of none: two nodes have summed, and the fault may be of either.
    """
    name, far = display_name(run.device), run.partner.device.node.name if run.partner else "another node"
    step = {
        CheckVerdict.PASS: "passed",
        CheckVerdict.DEGRADED: "degraded",
        CheckVerdict.FAIL: "failed",
        CheckVerdict.HUNG: "hung",
    }.get(found.verdict, "inconclusive")
    record(run, run.device, step, f"has checked the link of {name} to {far}: {run.summary}")
    if found.verdict in (CheckVerdict.FAIL, CheckVerdict.HUNG):
        _cordon(run, run.device, run.summary, found.action)
    pairs.concluded(run)


def _warn(device: Device, warning: str) -> None:
    """Note what is wrong with a device that stays in use, or that nothing is (empty)."""
    if device.warning != warning:
        device.warning = warning
        device.save(update_fields=["warning"])
        emit(NodesChanged((device.node_id,)))


def _tell_of_peers(run: GpuCheckRun, found: report_reader.Reading) -> None:
    """Two peers of the run that exchange wrong words: a warning on each, and operators are told.

    Nobody is taken out: which of the two it is nobody knows, and the run's own device has no part in it.
    """
    known = {peer.uuid: peer for peer in run.peers.select_related("node", "node__pool").order_by("index")}
    wrong = [each for each in found.between_peers if each.source in known and each.target in known]
    if not wrong:
        return
    ways = "; ".join(
        f"{each.errors} from {display_name(known[each.source])} to {display_name(known[each.target])}"
        for each in wrong
    )
    text = (
        f"Wrong words on their links, seen by the check of {display_name(run.device)}: {ways}. "
        "Nothing was taken out. Check each of them, with other peers."
    )
    concerned = [peer for uuid, peer in known.items() if any(uuid in (p.source, p.target) for p in wrong)]
    names = " and ".join(map(display_name, concerned))
    for peer in concerned:
        record(run, peer, "degraded", f"finds {display_name(peer)} degraded: {text}")
        # Each under its own lock, and no two at once: others lock them in another order.
        transaction.on_commit(partial(_warn_peer, peer.pk, text))
    notify_operators(concerned[0], "device.check_degraded", f"{names} exchange wrong data", text)


@transaction.atomic
def _warn_peer(device_id: UUID, warning: str) -> None:
    device = Device.objects.select_for_update().filter(pk=device_id).first()
    if device is not None:
        _warn(device, warning)


def _passed(run: GpuCheckRun, found: report_reader.Reading) -> None:
    device = run.device
    if run.kind == CheckKind.SCRUB:
        device.clean_free_mib = found.free_mib
        device.unscrubbed = False
        device.save(update_fields=["clean_free_mib", "unscrubbed"])
    else:
        device.passed_at = run.finished_at
        device.save(update_fields=["passed_at"])
        _warn(device, "")
    if device.cordoned and device.cordon_cause == CAUSE[CheckKind(run.kind)]:
        lift_cordon(actor=SYSTEM, device_id=device.pk, reason=f"it passes its {NOUN[CheckKind(run.kind)]}")
    if device.kind == DeviceKind.MIG and run.kind == CheckKind.CHECK:
        _lift_parent(device)


def _unproven(run: GpuCheckRun, why: str) -> None:
    """It could not be tested: the pool decides whether that keeps the device back."""
    device, pool = run.device, run.device.node.pool
    required = pool.scrub_required if run.kind == CheckKind.SCRUB else pool.check_required
    waited_for = run.kind == CheckKind.SCRUB or run.cause == CheckCause.HAND_OUT
    if required and waited_for:
        _cordon(run, device, why, "retry")


def _cordon(run: GpuCheckRun, device: Device, reason: str, recovery: str) -> None:
    cordon_device(
        actor=SYSTEM,
        device_id=device.pk,
        reason=reason,
        cause=CAUSE[CheckKind(run.kind)],
        recovery=recovery,
    )


def _cordon_parent(run: GpuCheckRun, recovery: str) -> None:
    parent = Device.objects.filter(uuid=run.device.parent_uuid, node=run.device.node_id).first()
    if parent is not None:
        _cordon(run, parent, f"Seen on its instance {run.device.mig_profile}: {run.summary}", recovery)


def _lift_parent(device: Device) -> None:
    """A GPU that is out for what was seen on an instance is back when none of its instances is out."""
    parent = Device.objects.filter(
        uuid=device.parent_uuid, node=device.node_id, cordoned=True, cordon_cause=CordonCause.CHECK
    ).first()
    if parent is None:
        return
    siblings = Device.objects.filter(parent_uuid=device.parent_uuid, node=device.node_id, present=True)
    if not siblings.filter(cordoned=True, cordon_cause=CordonCause.CHECK).exists():
        lift_cordon(actor=SYSTEM, device_id=parent.pk, reason="its instances pass their checks")


def _notified_before(run: GpuCheckRun) -> bool:
    """Whether the last run of this kind ended with the very same words: it is told once for each device."""
    last = (
        GpuCheckRun.objects.filter(device=run.device_id, kind=run.kind, state=RunState.DONE)
        .exclude(pk=run.pk)
        .order_by("-created_at")
        .first()
    )
    return last is not None and (last.verdict, last.summary) == (run.verdict, run.summary)
