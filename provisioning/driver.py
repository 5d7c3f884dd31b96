"""The contract of a driver. `tests/provisioning/test_driver_contract.py` holds every driver to it.

1. The external name derives from the workspace's UUID and stands on the backend too. Look before
   creating.
2. Existing with the same spec digest is success; with another, `Conflict`. Deleting what is missing
   is success.
3. Return promptly, never sleep: the reconciler calls again.
4. A failed start leaves nothing behind. Argument vectors only; every client call has a time-out.
5. Stopping or deleting a generation closes it, even when nothing was there: a later
   `ensure_started` with the same or a lower generation raises `Stale`.
6. Stopping or deleting with a lower generation than the one that runs raises `Stale` and touches
   nothing: an old message cannot end a newer incarnation.
7. Only what has been seen to be gone is ABSENT or STOPPED; what cannot be seen is UNKNOWN.
8. A change of a MIG layout is whole or did not happen, for whoever asks the inventory: also after a kill at
   any point. Repeating one that stands is success. What somebody uses is never destroyed.
9. A home is deleted by `delete_home` alone. Each call goes on where an earlier one was cut short, also by a
   kill; nothing outside the home goes, whatever leads there. Deleting what is missing is success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from provisioning.errors import MissingDependency, ProvisioningError
from provisioning.types import (
    Inventory,
    Leftover,
    LeftoverKind,
    LogPiece,
    MigRepartition,
    Observation,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
)

if TYPE_CHECKING:
    from provisioning.gpu.check import Meeting, Progress, Report
    from provisioning.gpu.reset import ResetResult
    from provisioning.gpu.scrub import ScrubResult


class Plane(StrEnum):
    """Which worker runs a driver's calls: the one on the node itself, or any that has the engine's API."""

    NODE = "node"
    ENGINE = "engine"


class Driver(ABC):
    """How one pool is operated. Instances are cheap; state lives on the backend, not in them."""

    name: ClassVar[str]
    plane: ClassVar[Plane]
    simulated: ClassVar[bool] = False
    settings: ClassVar[frozenset[str]] = frozenset()
    """What a pool's configuration may hold, refused where it is written; empty: the driver looks itself."""
    limits_egress: ClassVar[bool] = False
    """Whether it holds workspaces to `WorkspaceSpec.egress` and to its pool's `egress`."""
    limits_homes: ClassVar[bool] = False
    """Whether it holds home folders to `HOME_LIMIT` of its pool's configuration."""

    def __init__(self, pool: PoolConfig) -> None:
        self.pool = pool

    @abstractmethod
    def validate(self, spec: WorkspaceSpec) -> None:
        """Raise `InvalidSpec` when this pool can never run `spec`. No I/O: called within a request."""

    def accepts_endpoint(self, endpoint: str, ref: WorkspaceRef) -> bool:
        """Whether the agent of `ref` may say by itself that its app answers at `endpoint`. No I/O.

        A workspace's user can imitate its agent. A driver that returns False is observed instead, and
        its own word counts.
        """
        return False

    def arrange(self) -> None:  # noqa: B027 - most drivers leave the machine as it is
        """Put the machine in order before its inventory is taken; repeating it changes nothing.

        Called by the node's worker alone. Raises nothing for what cannot be done: the inventory tells.
        """

    def release_host(self, *, keep_workspaces: bool) -> int:
        """Undo what `arrange` did and end what serves no workspace; return how many processes still end.

        Called once the node's worker has ended; idempotent. With `keep_workspaces`, what running workspaces
        need stays. Raises `OSError`.
        """
        return 0

    @abstractmethod
    def inventory(self) -> Inventory:
        """The nodes and devices that are there now. Raises `BackendUnavailable`."""

    @abstractmethod
    def ensure_started(self, spec: WorkspaceSpec, placement: Placement) -> Observation:
        """Start the workspace unless it runs already; STARTING or RUNNING on success.

        Raises `Stale` for a closed generation, `Conflict` when the name is taken by another
        specification, `NoCapacity`, `StartFailed`, `MissingDependency` or `BackendUnavailable`.
        """

    def prepare(self, *, owner: int) -> None:  # noqa: B027 - most drivers have nothing to make ready
        """Make ready what shortens the next starts, and end what has become useless; may do nothing.

        What is made ready belongs to no workspace and ends with the process `owner`, a PID of this
        machine. Raises `BackendUnavailable`.
        """

    @abstractmethod
    def observe(self, ref: WorkspaceRef) -> Observation:
        """What is there now, of whichever generation; `observation.ref` names the one seen."""

    @abstractmethod
    def ensure_stopped(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """Ask the workspace to end and close its generation; STOPPING until it has been seen to end.

        It has the time that its specification gives it, or `grace_s` seconds from the first request on: the
        first call after that ends what is left by force.
        """

    @abstractmethod
    def ensure_deleted(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """End the workspace and remove all that belongs to it but its home; STOPPING until ABSENT.

        For `grace_s` see `ensure_stopped`.
        """

    @abstractmethod
    def delete_home(self, *, team: str, owner: str) -> bool:
        """Delete a home for good; True when nothing is left, False when there is more to delete: call again.

        The caller knows that nothing uses the home and nothing will. Raises `InvalidSpec` for names that no
        home can have, `BackendUnavailable`, or another error that is not retryable where somebody has
        arranged the home in a way that the driver does not undo.
        """

    @abstractmethod
    def list_owned(self) -> tuple[Observation, ...]:
        """Everything on the backend that carries one of our names, for the orphan sweep."""

    def list_leftovers(self) -> tuple[Leftover, ...]:
        """What is on this machine that no workspace, user or running process owns, and what of it has gone.

        Never anything that has an owner, however early or late that is asked. Raises `BackendUnavailable`.
        """
        return ()

    def remove_leftover(self, kind: LeftoverKind, name: str) -> bool:
        """Remove one, if it still has no owner; True when it is gone, False when there is more: call again.

        Removing what is missing is success. Whose home it is only the caller knows; one that is in use stays.
        Raises `InvalidSpec` for a name that none can have, `Conflict` where it has an owner.
        """
        raise self._cannot("searched for what is left over")

    @abstractmethod
    def logs(self, ref: WorkspaceRef, *, tail_lines: int = 200) -> str:
        """The last lines that the app wrote, newest last; empty when there are none."""

    @abstractmethod
    def read_log(
        self, ref: WorkspaceRef, *, after: int | None, tail_lines: int = 200, whole: bool = False
    ) -> LogPiece:
        """What this very start wrote after position `after`, in bytes; None: its last `tail_lines`.

        Whole lines, some 64 KiB at most; with `whole`, where nothing will follow, also a last one without an
        end. Nothing, and the same position, where there is no such start or nothing new.
        """

    # GPU checks and scrubs. Unlike all other calls these may take minutes: the caller gives them a thread.

    @property
    def checks_at_once(self) -> bool:
        """Whether `check_device` and `scrub_device` answer promptly, because nothing real is done."""
        return False

    def check_device(
        self,
        uuid: str,
        level: str,
        *,
        baseline: Mapping[str, float] | None = None,
        node_median: Mapping[str, float] | None = None,
        baseline_of: str = "",
        peers: Sequence[str] = (),
        meeting: Meeting | None = None,
        deadline_s: float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Report:
        """The report of the CUDA validation workload on one device; never raises for what the device does.

        `baseline_of`: the software that both baselines were measured with; with another they do not hold.
        `peers`: UUIDs of idle devices; links to them are measured where that can be done. `meeting`: nothing
        but the link to another node is checked, whose driver is told of the same place.
        Here: on this machine, in processes of its own. A driver whose devices are elsewhere has its own way,
        or says that it cannot.
        """
        # Imported by nobody who never checks a GPU.
        from provisioning.gpu.check import run_check

        if self.plane is not Plane.NODE:
            raise self._cannot("checked")
        return run_check(
            uuid,
            level,
            baseline=baseline,
            node_median=node_median,
            baseline_of=baseline_of,
            peers=peers,
            peers_required=False,
            meeting=meeting,
            deadline_s=deadline_s,
            on_progress=on_progress,
        )

    def scrub_device(
        self, uuid: str, *, baseline_mib: int | None = None, deadline_s: float = 120.0
    ) -> ScrubResult:
        """Clear the device's memory and prove it clean; `baseline_mib` is what it had free the last time."""
        # Imported by nobody who never scrubs a GPU.
        from provisioning.gpu.scrub_run import run_scrub

        if self.plane is not Plane.NODE:
            raise self._cannot("scrubbed")
        return run_scrub(uuid, baseline_mib=baseline_mib, deadline_s=deadline_s)

    def reset_device(self, uuid: str, *, bus: str = "", deadline_s: float = 120.0) -> ResetResult:
        """Reset an idle GPU; `bus` is its PCI address. Never raises for what the device does."""
        # Imported by nobody who never resets a GPU.
        from provisioning.gpu.reset_run import run_reset

        if self.plane is not Plane.NODE:
            raise self._cannot("reset")
        return run_reset(uuid, bus=bus, deadline_s=deadline_s)

    def repartition_device(self, change: MigRepartition) -> tuple[str, ...]:
        """Change a GPU's MIG layout; the UUIDs of the new instances, in the order of `change.create`.

        What goes and what comes is scrubbed. Raises `NoCapacity` where an instance that should go is in use
        or not there, or the GPU refuses the layout: then the old layout stands. Raises `Unclean` where memory
        could not be proven clean, and `BackendUnavailable`. Offered where the inventory has
        `Capability.REPARTITION`.
        """
        raise MissingDependency(
            f"MIG layouts of a {self.name} pool cannot be changed from here. Turn that off in its settings."
        )

    def _cannot(self, what: str) -> ProvisioningError:
        return MissingDependency(
            f"Devices of a {self.name} pool cannot be {what} from here. Turn that off in the pool's settings."
        )
