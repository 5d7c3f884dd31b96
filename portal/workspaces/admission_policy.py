"""Port to the scheduler: whether a workspace may enter the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from portal.common.ports import Port
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Admission:
    """How a workspace enters the queue: `without_gpus` means with its accelerators released."""

    without_gpus: bool = False


class AdmissionPolicy(Protocol):
    """Decides which requests enter the queue."""

    def admit(
        self, workspace: Workspace, *, unapproved: bool = False, gpus_optional: bool = False
    ) -> Admission:
        """Return how the workspace, which is locked or not yet saved, enters the queue. Changes nothing.

        With `unapproved`, a request that needs an approval is admitted and waits for the approval. With
        `gpus_optional`, a request that would wait for its accelerators, but can start at once without them,
        is admitted without them.

        Raises `NeedsApproval` and `NotPossible`.
        """


admission_policy = Port[AdmissionPolicy]("AdmissionPolicy")
