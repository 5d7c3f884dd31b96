"""Changes of a GPU's MIG layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind, GpuCheckRun
from provisioning import messages
from provisioning.check_messages import CheckCommand
from provisioning.types import MigRepartition

DEADLINE_S = 600.0
"""Two scrubs of each instance concerned, one after the other, and what lies between."""


def plan_of(change: MigRepartition) -> dict[str, Any]:
    """What a run keeps of its change; the GPU is the run's device."""
    return {"destroy": list(change.destroy), "create": messages.dump(change.create)}


def change_of(run: GpuCheckRun) -> MigRepartition:
    """The change of layout that a run is for."""
    return messages.load({"parent_uuid": run.device.uuid, **run.plan}, MigRepartition)


class RepartitionHandler(KindHandler):
    """A change of the layout of one GPU, for the start of a workspace."""

    kind = CheckKind.REPARTITION
    noun = "change of MIG layout"

    def deadline_s(self, run: GpuCheckRun) -> float:
        return DEADLINE_S

    def complete(self, command: CheckCommand, run: GpuCheckRun) -> CheckCommand:
        return replace(command, change=change_of(run))
