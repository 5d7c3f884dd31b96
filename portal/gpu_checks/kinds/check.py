"""Checks of a device with the CUDA validation workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from uuid import UUID

from django.db import transaction
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.common.actors import SYSTEM, SystemActor
from portal.fleet.inventory.cordons import display_name, lift_cordon, notify_operators
from portal.fleet.inventory.models import CheckLevel, CordonCause, Device, Pool
from portal.gpu_checks import baselines, peers, report_reader, runs
from portal.gpu_checks.kinds.device_proof import DeviceProofHandler, set_warning
from portal.gpu_checks.models import CheckCause, CheckKind, GpuCheckRun
from portal.gpu_checks.report_reader import RunResult
from portal.people.accounts.models import User
from provisioning.check_messages import CheckAnswer, CheckCommand
from provisioning.types import DeviceKind

DEADLINES_S: Mapping[str, float] = {
    CheckLevel.QUICK: 60.0,
    CheckLevel.STANDARD: 300.0,
    CheckLevel.EXTENDED: 2400.0,
}
_LABELS: Mapping[CheckLevel, str | Promise] = {
    CheckLevel.QUICK: _("Quick check"),
    CheckLevel.STANDARD: _("Standard check"),
    CheckLevel.EXTENDED: _("Extended check"),
}


class CheckHandler(DeviceProofHandler):
    """A check of one device at one of three levels. Can also measure the links to two idle devices."""

    kind = CheckKind.CHECK
    noun = "check"
    cordon_cause = CordonCause.CHECK
    passes_by_itself = frozenset({"", "none", "retry"})
    recheck_level = CheckLevel.STANDARD
    repeat_label = _("Check again")

    def request(
        self,
        *,
        actor: User | SystemActor,
        device_id: UUID,
        level: str = CheckLevel.QUICK,
        cause: CheckCause = CheckCause.OPERATOR,
    ) -> GpuCheckRun:
        return runs.request_check(actor=actor, device_id=device_id, level=level, cause=cause)

    def noun_phrase(self, level: str) -> str:
        return f"a {level} {self.noun}"

    def choose_peers(self, device: Device, level: str) -> list[Device]:
        return [] if level == CheckLevel.QUICK else peers.choose_peers(device)

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINES_S[run.level]

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        baseline = baselines.baselines_for(run.device)
        return replace(
            command, baseline=baseline.fleet, node_median=baseline.node, baseline_of=baseline.software
        )

    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
        return report_reader.read_check(answer, run)

    def apply_result(self, run: GpuCheckRun, reading: RunResult) -> None:
        super().apply_result(run, reading)
        _warn_peers(run, reading)

    def handle_pass(self, run: GpuCheckRun, reading: RunResult) -> None:
        super().handle_pass(run, reading)
        if run.device.kind == DeviceKind.MIG:
            _lift_parent(run.device)

    def note_pass(self, run: GpuCheckRun, reading: RunResult) -> None:
        run.device.passed_at = run.finished_at
        run.device.save(update_fields=["passed_at"])
        set_warning(run.device, "")

    def is_required_by(self, pool: Pool) -> bool:
        return pool.check_required

    def is_waited_for(self, run: GpuCheckRun) -> bool:
        return run.cause == CheckCause.HAND_OUT

    def label(self, run: GpuCheckRun) -> str:
        return str(_LABELS[CheckLevel(run.level)])


def _warn_peers(run: GpuCheckRun, reading: RunResult) -> None:
    """Warn about two peers that exchange wrong words, and notify operators.

    Cordons neither peer, because the faulty one is unknown. The run's own device is not involved.
    """
    peers_by_uuid = {
        peer.uuid: peer for peer in run.peers.select_related("node", "node__pool").order_by("index")
    }
    wrong = [
        pair
        for pair in reading.between_peers
        if pair.source in peers_by_uuid and pair.target in peers_by_uuid
    ]
    if not wrong:
        return
    pairs = "; ".join(
        f"{pair.errors} from {display_name(peers_by_uuid[pair.source])} "
        f"to {display_name(peers_by_uuid[pair.target])}"
        for pair in wrong
    )
    text = (
        f"The check of {display_name(run.device)} found wrong words on links between other devices: {pairs}. "
        "No device was cordoned. Check each of them with other peers."
    )
    concerned = [
        peer for uuid, peer in peers_by_uuid.items() if any(uuid in (p.source, p.target) for p in wrong)
    ]
    names = " and ".join(map(display_name, concerned))
    for peer in concerned:
        runs.record(run, peer, "degraded", f"found {display_name(peer)} degraded: {text}")
        # Locked one at a time, because others lock them in another order.
        transaction.on_commit(partial(_warn_peer, peer.pk, text))
    notify_operators(concerned[0], "device.check_degraded", f"{names} exchange corrupted data", text)


@transaction.atomic
def _warn_peer(device_id: UUID, warning: str) -> None:
    device = Device.objects.select_for_update().filter(pk=device_id).first()
    if device is not None:
        set_warning(device, warning)


def _lift_parent(device: Device) -> None:
    """Lift a GPU's cordon that was caused by an instance, unless another instance is cordoned."""
    parent = Device.objects.filter(
        uuid=device.parent_uuid, node=device.node_id, cordoned=True, cordon_cause=CordonCause.CHECK
    ).first()
    if parent is None:
        return
    siblings = Device.objects.filter(parent_uuid=device.parent_uuid, node=device.node_id, present=True)
    if not siblings.filter(cordoned=True, cordon_cause=CordonCause.CHECK).exists():
        lift_cordon(actor=SYSTEM, device_id=parent.pk, reason="its instances passed their checks")
