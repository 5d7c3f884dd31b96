"""A pool of a simulated engine that places by itself, as Slurm does. No process runs.

A started workspace waits in the engine's queue, with jobs of others, until it fits. The placement that the
portal reserved is only checked; the engine chooses nodes and GPUs.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from provisioning.driver import Driver
from provisioning.drivers.simulated_cluster.hardware import CAPABILITIES, check_request, nodes
from provisioning.drivers.simulated_cluster.schedule import Event, Job
from provisioning.drivers.simulated_cluster.script import KNOWN_KEYS, Hardware, Others, Script
from provisioning.drivers.simulated_cluster.state import SCHEMA, ClusterRows
from provisioning.drivers.simulated_cluster.traits import TRAITS
from provisioning.errors import (
    BackendUnavailable,
    Conflict,
    InvalidSpec,
    ProvisioningError,
    StaleCommand,
    StartFailed,
)
from provisioning.log_pieces import last_lines, lines_from
from provisioning.simulation.settings import Selector, check_keys, state_folder
from provisioning.simulation.store import SimulationStore
from provisioning.traits import Traits
from provisioning.types import (
    Inventory,
    LogPiece,
    Observation,
    Observations,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
    home_key,
)

_EXTERNAL_NAME = re.compile(r"ws-[0-9a-f]{32}")


class SimulatedClusterDriver(Driver):
    """Operates a pool with the settings of `provisioning.drivers.simulated_cluster.script`.

    `clock` returns UTC seconds since the epoch; `sleep` is used for `call_delay_ms` only. The constructor
    does no I/O and raises `InvalidConfig` for invalid settings.
    """

    name: ClassVar[str] = "simulated_cluster"
    traits: ClassVar[Traits] = TRAITS

    def __init__(
        self,
        pool: PoolConfig,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(pool)
        check_keys(pool.config, KNOWN_KEYS)
        self.hardware = Hardware.parse(pool.config)
        self.others = Others.parse(pool.config)
        self.script = Script.parse(pool.config)
        self._store = SimulationStore(state_folder(pool, self.name), SCHEMA)
        self._clock = clock
        self._sleep = sleep

    # Contract

    def validate(self, spec: WorkspaceSpec) -> None:
        if not _EXTERNAL_NAME.fullmatch(spec.ref.external_name):
            raise InvalidSpec(f"“{spec.ref.workspace_id}” is not a UUID. Create the workspace again.")
        if not spec.app.argv:
            raise InvalidSpec("The template has no start command. Choose another template.")
        check_request(spec.resources, self.hardware)

    def inventory(self) -> Inventory:
        with self._call(), self._book() as book:
            used, now = book.used_by_others(), book.now
        used_by_others = {self.hardware.reported_model: used} if self.hardware.gpus else {}
        return Inventory(nodes(self.pool.slug, self.hardware), CAPABILITIES, now, used_by_others)

    def ensure_started(self, spec: WorkspaceSpec, placement: Placement) -> Observation:
        self.validate(spec)
        with self._call():
            with self._book() as book:
                call = book.count_call(spec.ref.external_name)
                outcome = self._start(book, spec, placement, call)
            return self._answer(outcome, spec.ref, spec.name, call)

    def observe(self, ref: WorkspaceRef) -> Observation:
        with self._call(), self._book() as book:
            return book.observe(ref)

    def ensure_stopped(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        return self._end(ref, deleting=False, grace_s=grace_s)

    def ensure_deleted(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        return self._end(ref, deleting=True, grace_s=grace_s)

    def delete_home(self, *, team: str, owner: str) -> bool:
        with self._call(), self._book() as book:
            book.delete_home(home_key(team, owner))
        return True

    def list_owned(self) -> tuple[Observation, ...]:
        with self._call(), self._book() as book:
            return tuple(book.observation_of(row) for row in book.workspaces())

    def observe_all(self, since: str = "") -> Observations:
        """See `Driver.observe_all`. Always complete: positions and expected starts change with time."""
        return Observations(self.list_owned(), complete=True)

    def logs(self, ref: WorkspaceRef, *, tail_lines: int = 200) -> str:
        with self._call(), self._book() as book:
            row = book.workspace(ref.external_name)
            return row.log(tail_lines) if row else ""

    def read_log(
        self, ref: WorkspaceRef, *, after: int | None, tail_lines: int = 200, whole: bool = False
    ) -> LogPiece:
        """See `Driver.read_log`."""
        with self._call(), self._book() as book:
            row = book.workspace(ref.external_name)
            if row is None or row.generation != ref.generation:
                return LogPiece("", after or 0)
            data = row.log(sys.maxsize).encode()
        if after is None:
            return last_lines(data, len(data), tail_lines, whole=whole)
        start = min(after, len(data))
        return lines_from(data[start:], start, whole=whole)

    # For tests

    def starts(self, ref: WorkspaceRef) -> int:
        """Return the number of starts of the workspace, one for each generation that was queued."""
        with self._book() as book:
            return book.starts(ref.external_name)

    def homes(self) -> frozenset[str]:
        """Return the keys of all home volumes, which outlive workspaces."""
        with self._book() as book:
            return book.homes()

    # Implementation

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self.script.call_delay_ms:
            self._sleep(self.script.call_delay_ms / 1000)
        if self.script.unavailable:
            raise BackendUnavailable(
                "This simulated pool does not answer, as scripted. Remove “unavailable” from its settings."
            )
        yield

    @contextmanager
    def _book(self) -> Iterator[ClusterRows]:
        now = self._clock()
        with self._store.write(now) as connection:
            book = ClusterRows(connection, now, self.hardware, self.others)
            yield book
            book.save()

    def _start(
        self, book: ClusterRows, spec: WorkspaceSpec, placement: Placement, call: int
    ) -> Observation | ProvisioningError:
        ref, name = spec.ref, spec.ref.external_name
        if ref.generation <= book.closed_generation(name):
            return StaleCommand("The workspace was stopped after this start. Start the workspace again.")
        row = book.workspace(name)
        if row is not None:
            if row.generation > ref.generation:
                return StaleCommand("A later run of this workspace exists. Open the later run.")
            if row.generation == ref.generation and row.digest == spec.digest():
                return book.observe(ref)
            if row.job.stop_at is None:
                return Conflict(
                    "The workspace is running with other settings. Stop the workspace, then start it again.",
                    detail=f"generation {row.generation} digest {row.digest}",
                )
            if row.job.ended_at is None:
                return StartFailed("The last run of this workspace is still stopping. Try again in a moment.")
        problem = self._check_placement(spec, placement)
        if problem is not None:
            return problem
        book.submit(spec, self._job(spec, call), self.script.crash_exit_code)
        return book.observe(ref)

    def _check_placement(self, spec: WorkspaceSpec, placement: Placement) -> ProvisioningError | None:
        names, requested = {part.node for part in placement.nodes}, spec.resources.nodes
        if len(names) != requested or len(placement.nodes) != requested:
            return StartFailed(
                f"The placement has {len(names)} nodes, and the flavor needs {requested}. "
                "Start the workspace again."
            )
        for missing in sorted(names.difference(map(self.hardware.node, range(self.hardware.nodes)))):
            return StartFailed(f"This pool has no node {missing}. Refresh the inventory and try again.")
        return None

    def _job(self, spec: WorkspaceSpec, call: int) -> Job:
        """Return the job of a workspace; `ClusterRows.submit` numbers it."""
        script, request = self.script, spec.resources
        is_late = script.start_delay_s > spec.app.start_timeout_s
        fails_after_s, failure = script.crash_after_s, Event.APP_EXITED
        if is_late and (fails_after_s is None or fails_after_s > spec.app.start_timeout_s):
            fails_after_s, failure = float(spec.app.start_timeout_s), Event.START_TIMEOUT
        requeued = script.requeue_after_s and self._selects(
            script.requeue, "requeue", spec.name, spec.ref.external_name, call
        )
        return Job(
            number=0,
            name=spec.ref.external_name,
            nodes=request.nodes,
            gpus=request.accelerators.count,
            cpu_milli=request.cpu_milli,
            memory_mib=request.memory_mib,
            disk_mib=request.disk_mib,
            limit_s=script.time_limit_s or None,
            ready_after_s=None if is_late else script.start_delay_s,
            fails_after_s=fails_after_s,
            failure=failure,
            requeue_after_s=script.requeue_after_s if requeued else None,
        )

    def _end(self, ref: WorkspaceRef, *, deleting: bool, grace_s: float | None) -> Observation:
        name = ref.external_name
        with self._call():
            with self._book() as book:
                call = book.count_call(name)
                row = book.workspace(name)
                outcome: Observation | ProvisioningError
                if row is not None and row.generation > ref.generation:
                    outcome = StaleCommand(
                        "The workspace was started again after this request. Repeat the request."
                    )
                else:
                    book.close(name, ref.generation)
                    if row is not None:
                        takes_s = self.script.stop_delay_s
                        book.end(
                            row, takes_s if grace_s is None else min(takes_s, grace_s), deleting=deleting
                        )
                    outcome = book.observe(ref)
            return self._answer(outcome, ref, row.display_name if row else "", call)

    def _answer(
        self, outcome: Observation | ProvisioningError, ref: WorkspaceRef, name: str, call: int
    ) -> Observation:
        if self._selects(self.script.lose_replies, "lose_replies", name, ref.external_name, call):
            raise BackendUnavailable(
                "The response of this simulated pool was lost, as scripted. Try again.", detail=repr(outcome)
            )
        if isinstance(outcome, ProvisioningError):
            raise outcome
        return outcome

    def _selects(self, selector: Selector, kind: str, name: str, external_name: str, call: int) -> bool:
        return selector.selects(
            seed=self.script.seed, kind=kind, name=name, external_name=external_name, call=call
        )
