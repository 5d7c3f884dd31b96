"""Base class of checks and scrubs of one device: failures cordon the device, passes lift the cordon."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar
from uuid import UUID

from django.urls import reverse
from django.utils.functional import Promise

from portal.common.actors import SYSTEM, SystemActor
from portal.common.domain_events import emit
from portal.fleet.inventory.cordons import display_name, lift_cordon, notify_operators
from portal.fleet.inventory.domain_events import NodesChanged
from portal.fleet.inventory.models import CheckLevel, Device, Pool
from portal.gpu_checks import runs
from portal.gpu_checks.kinds.judged import JudgedHandler
from portal.gpu_checks.kinds.looks import RepeatForm
from portal.gpu_checks.models import CheckCause, CheckVerdict, GpuCheckRun, RunState
from portal.gpu_checks.report_reader import RunResult
from portal.people.accounts.models import User
from provisioning.types import DeviceKind


class DeviceProofHandler(JudgedHandler):
    """Handles runs whose verdict is about one device. Users can request such runs and repeat them."""

    passes_by_itself: ClassVar[frozenset[str]]
    """Values of a device's `recovery` with which a run may pass without a repair."""
    recheck_level: ClassVar[CheckLevel]
    """Level of the run that lifts the cordon."""
    repeat_label: ClassVar[str | Promise]

    @abstractmethod
    def request(
        self,
        *,
        actor: User | SystemActor,
        device_id: UUID,
        level: str = CheckLevel.QUICK,
        cause: CheckCause = CheckCause.OPERATOR,
    ) -> GpuCheckRun:
        """Request such a run of a device. Raises the exceptions of `runs.request_check`."""

    @abstractmethod
    def note_pass(self, run: GpuCheckRun, reading: RunResult) -> None:
        """Record on the device of a run what its pass has proven."""

    @abstractmethod
    def is_required_by(self, pool: Pool) -> bool:
        """Return whether the pool keeps back a device if such a run could not prove it."""

    @abstractmethod
    def is_waited_for(self, run: GpuCheckRun) -> bool:
        """Return whether the device is allocated as soon as the run has proven it."""

    def apply_result(self, run: GpuCheckRun, reading: RunResult) -> None:
        device, name = run.device, display_name(run.device)
        match reading.verdict:
            case CheckVerdict.PASS:
                runs.record(run, device, "passed", f"found that {name} passed its {self.noun}")
                self.handle_pass(run, reading)
            case CheckVerdict.DEGRADED:
                set_warning(device, run.summary)
                runs.record(run, device, "degraded", f"found {name} degraded: {run.summary}")
                if not _notified_before(run):
                    notify_operators(device, "device.check_degraded", f"{name} is degraded", run.summary)
                if reading.unjudged:
                    # Only the speed is unknown, and another check would not change that.
                    self._lift(device)
            case CheckVerdict.FAIL | CheckVerdict.HUNG:
                outcome = "failed" if reading.verdict == CheckVerdict.FAIL else "hung"
                runs.record(
                    run, device, outcome, f"found that the {self.noun} of {name} {outcome}: {run.summary}"
                )
                self.cordon(device, run.summary, reading.action)
                if device.kind == DeviceKind.MIG and reading.of_the_parent:
                    self._cordon_parent(run, reading.action)
            case _:
                if not _notified_before(run):
                    runs.record(run, device, "inconclusive", f"could not {self.noun} {name}: {run.summary}")
                self._keep_unproven(run, run.summary)

    def handle_pass(self, run: GpuCheckRun, reading: RunResult) -> None:
        """Lift the cordon of a device that such a run cordoned."""
        self.note_pass(run, reading)
        self._lift(run.device)

    def _lift(self, device: Device) -> None:
        if device.cordoned and device.cordon_cause == self.cordon_cause:
            lift_cordon(actor=SYSTEM, device_id=device.pk, reason=f"the device passed its {self.noun}")

    def handle_loss(self, run: GpuCheckRun, reason: str) -> None:
        self._keep_unproven(run, f"The {self.noun} of the device was lost: {reason}")

    def repeat(self, run: GpuCheckRun) -> RepeatForm | None:
        return RepeatForm(
            url=reverse("gpu_checks:device-checks", args=[run.device_id]),
            hidden=(("kind", self.kind.value),),
            name="level",
            value=run.level,
            label=str(self.repeat_label),
        )

    def _keep_unproven(self, run: GpuCheckRun, reason: str) -> None:
        """Cordon the device if its pool requires proof and the run had no verdict."""
        if self.is_required_by(run.device.node.pool) and self.is_waited_for(run):
            self.cordon(run.device, reason, "retry")

    def _cordon_parent(self, run: GpuCheckRun, recovery: str) -> None:
        parent = Device.objects.filter(uuid=run.device.parent_uuid, node=run.device.node_id).first()
        if parent is not None:
            self.cordon(parent, f"Found on its instance {run.device.mig_profile}: {run.summary}", recovery)


def set_warning(device: Device, warning: str) -> None:
    """Set or clear the warning of a device that stays in service."""
    if device.warning != warning:
        device.warning = warning
        device.save(update_fields=["warning"])
        emit(NodesChanged((device.node_id,)))


def _notified_before(run: GpuCheckRun) -> bool:
    """Return whether the last run of this kind had the same result. Equal results are recorded once."""
    last = (
        GpuCheckRun.objects.filter(device=run.device_id, kind=run.kind, state=RunState.DONE)
        .exclude(pk=run.pk)
        .order_by("-created_at")
        .first()
    )
    return last is not None and (last.verdict, last.summary) == (run.verdict, run.summary)
