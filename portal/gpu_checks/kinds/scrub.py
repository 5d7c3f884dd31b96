"""Scrubs, which clear a device's memory and verify the result."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from portal.common.actors import SystemActor
from portal.fleet.inventory.models import CheckLevel, CordonCause, Pool
from portal.gpu_checks import baselines, report_reader, runs
from portal.gpu_checks.kinds.device_proof import DeviceProofHandler
from portal.gpu_checks.models import CheckCause, CheckKind, GpuCheckRun
from portal.gpu_checks.report_reader import RunResult
from portal.people.accounts.models import User
from provisioning.check_messages import CheckAnswer, CheckCommand

DEADLINE_S = 120.0


class ScrubHandler(DeviceProofHandler):
    """A scrub of one device. Compares the free memory with that when the device was last clean."""

    kind = CheckKind.SCRUB
    noun = "scrub"
    cordon_cause = CordonCause.SCRUB
    passes_by_itself = frozenset({"", "none", "retry", "reset"})
    recheck_level = CheckLevel.QUICK
    repeat_label = _("Scrub again")

    def request(
        self,
        *,
        actor: User | SystemActor,
        device_id: UUID,
        level: str = CheckLevel.QUICK,
        cause: CheckCause = CheckCause.OPERATOR,
    ) -> GpuCheckRun:
        # A scrub has only one level.
        return runs.request_scrub(actor=actor, device_id=device_id, cause=cause)

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, baseline_mib=baselines.clean_free_mib(run.device))

    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
        return report_reader.read_scrub(answer, run)

    def note_pass(self, run: GpuCheckRun, reading: RunResult) -> None:
        run.device.clean_free_mib = reading.free_mib
        run.device.unscrubbed = False
        run.device.save(update_fields=["clean_free_mib", "unscrubbed"])

    def is_required_by(self, pool: Pool) -> bool:
        return pool.scrub_required

    def is_waited_for(self, run: GpuCheckRun) -> bool:
        return True
