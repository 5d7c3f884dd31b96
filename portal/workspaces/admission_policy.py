"""Port to the scheduler: whether a workspace may enter the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from portal.common.ports import Port
from portal.workspaces.models import Workspace


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision to admit a workspace. With `without_gpus`, its accelerators are released first."""

    without_gpus: bool = False


class AdmissionPolicy(Protocol):
    """Decides which requests enter the queue."""

    def admit(
        self, workspace: Workspace, *, unapproved: bool = False, gpus_optional: bool = False
    ) -> Admission:
        """Return how a workspace enters the queue. The caller has locked it or not saved it yet. Read-only.

        With `unapproved`, a request that needs an approval is admitted and waits for the approval. With
        `gpus_optional`, a request that would wait for its accelerators, but can start at once without them,
        is admitted without them.

        Raises `NeedsApproval` and `NotPossible`.
        """


admission_policy = Port[AdmissionPolicy]("AdmissionPolicy")
