"""Base class of runs whose node sends a report with a verdict: checks, scrubs and ends of a link."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.texts import strip_nul, strip_nul_json
from portal.fleet.inventory.cordons import cordon_device
from portal.fleet.inventory.models import CordonCause, Device
from portal.gpu_checks import runs
from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import GpuCheckRun, RunState
from portal.gpu_checks.report_reader import RunResult
from portal.workspaces.models import Workspace
from provisioning.check_messages import CheckAnswer


class JudgedHandler(KindHandler):
    """Reads the report, ends the run with its verdict, and acts on the verdict."""

    cordon_cause: ClassVar[CordonCause]

    @abstractmethod
    def read(self, answer: CheckAnswer, run: GpuCheckRun) -> RunResult:
        """Return the result of an answer; an invalid report is inconclusive."""

    @abstractmethod
    def apply_result(self, run: GpuCheckRun, reading: RunResult) -> None:
        """Act on the result, for the device of a run that has just ended."""

    def apply_answer(self, run: GpuCheckRun, answer: CheckAnswer, workspace: Workspace | None) -> None:
        if run.started_at is None:
            run.started_at = timezone.now()
        reading = self.read(answer, run)
        runs.close(
            run,
            RunState.DONE,
            started_at=run.started_at,
            verdict=reading.verdict,
            recovery=reading.action,
            summary=strip_nul(reading.summary)[:2000],
            report=strip_nul_json(reading.report),
            measures=reading.measures,
            unjudged=reading.unjudged,
        )
        self.apply_result(run, reading)

    def cordon(self, device: Device, reason: str, recovery: str) -> None:
        """Cordon a device until a run of this kind passes."""
        cordon_device(
            actor=SYSTEM, device_id=device.pk, reason=reason, cause=self.cordon_cause, recovery=recovery
        )
