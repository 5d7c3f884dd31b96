"""The contract of drivers. `tests/provisioning/test_driver_contract*.py` check every driver against it.

1. The external name derives from the workspace's UUID and is also stored on the backend. Check for it
   before creating.
2. Starting a workspace that exists succeeds if the spec digest is equal and raises `Conflict` otherwise.
   Deleting what does not exist succeeds.
3. Return promptly, never sleep: the reconciler calls again.
4. A failed start leaves nothing behind. Use argument vectors only, and a timeout for every client call: one
   call that hangs stops all others of its pool on that worker (`provisioning.node.engine_calls`).
5. Stopping or deleting a generation closes it, even if nothing was there: a later `ensure_started` with
   the same or a lower generation raises `Stale`.
6. Stopping or deleting with a lower generation than the running one raises `Stale` and changes nothing: an
   old message cannot end a newer incarnation.
7. Report ABSENT or STOPPED only if that was observed. Report UNKNOWN if the state cannot be observed.
8. A change of a MIG layout is atomic for readers of the inventory, also after a kill at any point. Repeating
   a completed change succeeds. Instances in use are never destroyed.
9. Only `delete_home` deletes a home. Each call continues where an earlier one was interrupted, also by a
   kill. Nothing outside the home is deleted, whatever links point to. Deleting a missing home succeeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from provisioning.errors import MissingDependency, ProvisioningError
from provisioning.traits import DeviceChecks, Traits
from provisioning.types import (
    Inventory,
    Leftover,
    LeftoverKind,
    LogPiece,
    MigRepartition,
    Observation,
    Observations,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
)

if TYPE_CHECKING:
    from provisioning.gpu.check.report import Report
    from provisioning.gpu.check.types import Progress, Rendezvous
    from provisioning.gpu.reset import ResetResult
    from provisioning.gpu.scrub import ScrubResult


class Driver(ABC):
    """Operates one pool. Instances are cheap; state lives on the backend, not in them."""

    name: ClassVar[str]
    traits: ClassVar[Traits]
    """Traits that the driver declares, from its module `traits`."""
    settings: ClassVar[frozenset[str]] = frozenset()
    """Valid keys of a pool's configuration, checked when it is saved; empty: the driver validates them
    itself."""

    def __init__(self, pool: PoolConfig) -> None:
        self.pool = pool

    @abstractmethod
    def validate(self, spec: WorkspaceSpec) -> None:
        """Raise `InvalidSpec` if this pool can never run `spec`. No I/O: called within a request."""

    def accepts_endpoint(self, endpoint: str, ref: WorkspaceRef) -> bool:
        """Return whether the agent of `ref` may report that its app answers at `endpoint`. No I/O.

        A workspace's user can imitate its agent. If False, only the driver's own observations count.
        """
        return False

    def prepare_host(self) -> None:  # noqa: B027 - optional: most drivers need no preparation
        """Prepare the machine before its inventory is taken. Idempotent.

        Called only by the node's worker. Raises nothing for steps that fail: the inventory reports them.
        """

    def release_host(self, *, keep_workspaces: bool) -> int:
        """Undo `prepare_host`, end processes that serve no workspace, and return how many are still ending.

        Called after the node's worker has ended. Idempotent. `keep_workspaces` keeps what running workspaces
        need. Raises `OSError`.
        """
        return 0

    @abstractmethod
    def inventory(self) -> Inventory:
        """Return the current nodes and devices. Raises `BackendUnavailable`."""

    @abstractmethod
    def ensure_started(self, spec: WorkspaceSpec, placement: Placement) -> Observation:
        """Start the workspace unless it already runs. Return STARTING or RUNNING, or QUEUED at its engine.

        Raises `Stale` for a closed generation, `Conflict` if the name is taken by another specification,
        `NoCapacity`, `StartFailed`, `MissingDependency` or `BackendUnavailable`.
        """

    def warm_up(self, *, owner: int) -> None:  # noqa: B027 - optional: most drivers have nothing to prepare
        """Prepare spare resources that shorten the next starts, and end obsolete ones. May do nothing.

        They belong to no workspace and end with the process `owner`, a PID of this machine. Raises
        `BackendUnavailable`.
        """

    @abstractmethod
    def observe(self, ref: WorkspaceRef) -> Observation:
        """Return the workspace's current state in any generation, named by `observation.ref`."""

    def observe_all(self, since: str = "") -> Observations:
        """Return the workspaces of the pool, or those that changed after the cursor `since`.

        Makes one call to the engine, regardless of the number of workspaces. For pools on the plane `engine`,
        the portal calls this method instead of `observe`. An unknown or expired `since` returns all. Raises
        `BackendUnavailable`.
        """
        return Observations(self.list_owned(), complete=True)

    @abstractmethod
    def ensure_stopped(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """Ask the workspace to end and close its generation. Return STOPPING until it has ended.

        The workspace has the time of its specification, or `grace_s` seconds from the first request. The
        first call after that kills its remaining processes.
        """

    @abstractmethod
    def ensure_deleted(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """End the workspace and remove all its resources except its home. Return STOPPING until ABSENT.

        See `ensure_stopped` for `grace_s`.
        """

    @abstractmethod
    def delete_home(self, *, team: str, owner: str) -> bool:
        """Delete a home permanently. Return True if nothing is left, False if the call has to be repeated.

        The caller guarantees that nothing uses the home, now or later. Raises `InvalidSpec` for an invalid
        team or owner name, `BackendUnavailable`, or an error that is not retryable if the home was changed in
        a way that the driver does not undo.
        """

    @abstractmethod
    def list_owned(self) -> tuple[Observation, ...]:
        """Return everything on the backend that carries one of our names, for the orphan sweep."""

    def list_leftovers(self) -> tuple[Leftover, ...]:
        """Return resources on this machine without a workspace, user or running process, and recent removals.

        Never returns a resource that has an owner. Raises `BackendUnavailable`.
        """
        return ()

    def remove_leftover(self, kind: LeftoverKind, name: str) -> bool:
        """Remove a leftover if it has no owner. Return True if it is gone, False if to be called again.

        Removing a missing leftover succeeds. Only the caller knows who owns a home; a home in use is kept.
        Raises `InvalidSpec` for an invalid name and `Conflict` if it has an owner.
        """
        raise MissingDependency(
            f"Leftovers of a {self.name} pool cannot be removed here. Remove them with the pool's own tools."
        )

    @abstractmethod
    def logs(self, ref: WorkspaceRef, *, tail_lines: int = 200) -> str:
        """Return the last lines of the app's output, newest last; empty if there are none."""

    @abstractmethod
    def read_log(
        self, ref: WorkspaceRef, *, after: int | None, tail_lines: int = 200, whole: bool = False
    ) -> LogPiece:
        """Return the output of this start after byte offset `after`; None: its last `tail_lines` lines.

        Returns whole lines, up to about 64 KiB. `whole` also returns an unterminated last line; pass it if no
        more output will follow. If the start does not exist or wrote nothing new, returns no text and the
        same offset.
        """

    # GPU checks and scrubs. Unlike all other calls these may take minutes: the caller runs them in a thread.

    @property
    def checks_at_once(self) -> bool:
        """Whether `check_device` and `scrub_device` answer promptly because they are simulated."""
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
        meeting: Rendezvous | None = None,
        joint: bool = False,
        deadline_s: float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Report:
        """Return the report of the CUDA validation workload on one device. Never raises device errors.

        `baseline_of`: the software versions of both baselines; they are ignored with other versions. `peers`:
        UUIDs of idle devices; links to them are measured if possible. `meeting`: check only the link to
        another node, whose driver gets the same meeting. `joint`: check only the device and all `peers` under
        load at once. The default implementation runs processes on this machine. A driver whose devices are
        elsewhere overrides it or raises `MissingDependency`.
        """
        # Imported here so that only processes that check a GPU load it.
        from provisioning.gpu.check.runner import run_check

        if self.traits.device_checks is not DeviceChecks.NODE:
            raise self._unsupported("checked")
        return run_check(
            uuid,
            level,
            baseline=baseline,
            node_median=node_median,
            baseline_of=baseline_of,
            peers=peers,
            peers_required=False,
            meeting=meeting,
            joint=joint,
            deadline_s=deadline_s,
            on_progress=on_progress,
        )

    def scrub_device(
        self, uuid: str, *, baseline_mib: int | None = None, deadline_s: float = 120.0
    ) -> ScrubResult:
        """Clear the device's memory and verify it; `baseline_mib` is the free memory measured last time."""
        # Imported here so that only processes that scrub a GPU load it.
        from provisioning.gpu.scrub_run import run_scrub

        if self.traits.device_checks is not DeviceChecks.NODE:
            raise self._unsupported("scrubbed")
        return run_scrub(uuid, baseline_mib=baseline_mib, deadline_s=deadline_s)

    def reset_device(self, uuid: str, *, bus: str = "", deadline_s: float = 120.0) -> ResetResult:
        """Reset an idle GPU; `bus` is its PCI address. Device errors are reported, not raised."""
        # Imported here so that only processes that reset a GPU load it.
        from provisioning.gpu.reset_run import run_reset

        if self.traits.device_checks is not DeviceChecks.NODE:
            raise self._unsupported("reset")
        return run_reset(uuid, bus=bus, deadline_s=deadline_s)

    def repartition_device(self, change: MigRepartition) -> tuple[str, ...]:
        """Change a GPU's MIG layout. Return the UUIDs of the new instances in the order of `change.create`.

        Destroyed and created instances are scrubbed. Raises `NoCapacity` if an instance to destroy is in use
        or missing, or if the GPU rejects the layout; the old layout then remains. Raises `UncleanDevices` if
        memory could not be verified clean, and `BackendUnavailable`. Offered if the inventory has
        `Capability.REPARTITION`.
        """
        raise MissingDependency(
            f"A {self.name} pool cannot change MIG layouts. Turn these changes off in the pool's settings."
        )

    def _unsupported(self, verb: str) -> ProvisioningError:
        return MissingDependency(
            f"Devices of a {self.name} pool cannot be {verb} by Berth. Turn this off in the pool's settings."
        )
