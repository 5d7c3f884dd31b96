"""A pool of simulated nodes and devices. No process runs; states depend on time only.

Capacity is enforced: a placement that would allocate a device, or CPU or memory of a node, twice is refused
with `NoCapacity` and recorded in `over_grants()`. Tests use this to find schedulers that allocate twice.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from provisioning.driver import Driver
from provisioning.drivers.simulated import faults, hardware, mig, mig_profiles, rows
from provisioning.drivers.simulated.script import KNOWN_KEYS, FaultyDevices, Script, Topology
from provisioning.drivers.simulated.state import SCHEMA
from provisioning.drivers.simulated.traits import TRAITS
from provisioning.errors import (
    BackendUnavailable,
    Conflict,
    InvalidSpec,
    NoCapacity,
    ProvisioningError,
    StaleCommand,
    StartFailed,
    UncleanDevices,
)
from provisioning.gpu.check.report import Report
from provisioning.gpu.check.types import Progress, Rendezvous
from provisioning.gpu.reset import ResetResult, ResetVerdict
from provisioning.gpu.scrub import ScrubResult, ScrubVerdict
from provisioning.log_pieces import last_lines, lines_from
from provisioning.simulation.settings import Selector, check_keys, state_folder
from provisioning.simulation.store import SimulationStore
from provisioning.traits import Traits
from provisioning.types import (
    WHOLE_DEVICE_MILLI,
    DeviceInfo,
    Inventory,
    LogPiece,
    MigRepartition,
    NodeInfo,
    Observation,
    Observations,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
    home_key,
)

_EXTERNAL_NAME = re.compile(r"ws-[0-9a-f]{32}")


class SimulatedDriver(Driver):
    """Operates a pool with the settings of `provisioning.drivers.simulated.script`.

    `clock` returns UTC seconds since the epoch; `sleep` is used for `call_delay_ms` only. The constructor
    does no I/O and raises `InvalidConfig` for invalid settings.
    """

    name: ClassVar[str] = "simulated"
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
        self.topology = Topology.parse(pool.config)
        self.script = Script.parse(pool.config)
        self.faults = FaultyDevices.parse(pool.config)
        self._store = SimulationStore(state_folder(pool, self.name), SCHEMA)
        self._clock = clock
        self._sleep = sleep

    # Contract

    def validate(self, spec: WorkspaceSpec) -> None:
        request, topology = spec.resources, self.topology
        gpus = request.accelerators
        if not _EXTERNAL_NAME.fullmatch(spec.ref.external_name):
            raise InvalidSpec(f"“{spec.ref.workspace_id}” is not a UUID. Create the workspace again.")
        if not spec.app.argv:
            raise InvalidSpec("The template has no start command. Choose another template.")
        if (
            min(request.cpu_milli, request.memory_mib) < 1
            or min(request.disk_mib, gpus.count) < 0
            or request.nodes < 1
        ):
            raise InvalidSpec("The flavor has no CPU, memory or nodes. Choose another flavor.")
        if not 1 <= gpus.share_milli <= WHOLE_DEVICE_MILLI:
            raise InvalidSpec(
                "The flavor's share of a device is not from 1 to 1000 thousandths. Choose another flavor."
            )
        for requested, available, description in (
            (request.nodes, topology.nodes, "nodes in this pool"),
            (request.cpu_milli, topology.cpu_milli, "milli-CPU on a node"),
            (request.memory_mib, topology.memory_mib, "MiB of memory on a node"),
            (request.disk_mib, topology.disk_mib, "MiB of disk on a node"),
            (
                gpus.count,
                topology.gpus * (mig_profiles.COMPUTE if gpus.mig_profile else 1),
                "accelerators on a node",
            ),
            (
                gpus.memory_mib if gpus.count else 0,
                topology.gpu_memory_mib,
                "MiB of memory on an accelerator",
            ),
        ):
            if requested > available:
                raise InvalidSpec(
                    f"The flavor needs {requested} {description}, limit {available}. Choose a smaller flavor."
                )
        if gpus.count and gpus.model and gpus.model.lower() not in topology.reported_model.lower():
            raise InvalidSpec(
                f"This pool has {topology.reported_model} accelerators, not {gpus.model}. "
                "Choose another flavor."
            )

    def inventory(self) -> Inventory:
        with self._call():
            now = self._clock()
            with self._store.read(now) as connection:
                epoch = rows.PoolRows(connection, now).epoch()
                layouts = mig.changed_layouts(connection) if self.topology.layout else {}
            offline = {node for node in self.script.vanish_nodes if self._has_vanished(node, epoch, now)}
            nodes = hardware.nodes(self.pool.slug, self.topology, frozenset(offline))
            if self.faults.vanish:
                nodes = tuple(self._without_vanished(node, epoch, now) for node in nodes)
            if not self.topology.layout:
                return Inventory(nodes, hardware.CAPABILITIES, now)
            return Inventory(
                tuple(self._with_instances(node, layouts) for node in nodes), hardware.WITH_MIG, now
            )

    def ensure_started(self, spec: WorkspaceSpec, placement: Placement) -> Observation:
        self.validate(spec)
        with self._call():
            with self._change() as book:
                call = book.count_call(spec.ref.external_name)
                outcome = self._start(book, spec, placement, call)
            return self._answer(outcome, spec.ref, spec.name, call)

    def observe(self, ref: WorkspaceRef) -> Observation:
        with self._call(), self._view() as book:
            return book.observe_ref(ref)

    def ensure_stopped(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        return self._end(ref, deleting=False, grace_s=grace_s)

    def ensure_deleted(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        return self._end(ref, deleting=True, grace_s=grace_s)

    def delete_home(self, *, team: str, owner: str) -> bool:
        with self._call(), self._change() as book:
            book.delete_home(home_key(team, owner))
        return True

    def list_owned(self) -> tuple[Observation, ...]:
        with self._call(), self._view() as book:
            return tuple(book.observation_of(row) for row in book.rows())

    def observe_all(self, since: str = "") -> Observations:
        """See `Driver.observe_all`. A cursor is a time in seconds since the epoch."""
        with self._call(), self._view() as book:
            # Nodes go offline and return without a change of any row.
            after = None if self.script.vanish_nodes else _time_of(since)
            found = book.rows() if after is None else book.changed_after(after)
            listed = tuple(book.observation_of(row) for row in found)
            return Observations(listed, complete=after is None, cursor=repr(book.now))

    def logs(self, ref: WorkspaceRef, *, tail_lines: int = 200) -> str:
        with self._call(), self._view() as book:
            row = book.row(ref.external_name)
            return row.log(book.now, tail_lines) if row else ""

    def read_log(
        self, ref: WorkspaceRef, *, after: int | None, tail_lines: int = 200, whole: bool = False
    ) -> LogPiece:
        """See `Driver.read_log`."""
        with self._call(), self._view() as book:
            row = book.row(ref.external_name)
            if row is None or row.generation != ref.generation:
                return LogPiece("", after or 0)
            data = row.log(book.now, sys.maxsize).encode()
        if after is None:
            return last_lines(data, len(data), tail_lines, whole=whole)
        start = min(after, len(data))
        return lines_from(data[start:], start, whole=whole)

    @property
    def checks_at_once(self) -> bool:
        """See `Driver.checks_at_once`."""
        return not self.faults.check_s

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
        """Return a report of the scripted device state, marked as simulated and never a pass."""
        with self._call():
            device = self._device(uuid)
            if device is None:
                return faults.no_such_device(uuid, level, self._clock())
            device_faults, busy, memory_mib = device
            return faults.check_report(
                uuid,
                level,
                model=self.topology.reported_model,
                memory_mib=memory_mib,
                faults=device_faults,
                busy=busy,
                now=self._clock(),
                check_s=self.faults.check_s,
                baseline=baseline,
                node_median=node_median,
                meeting=meeting,
                joint_with=tuple(peers) if joint else (),
                on_progress=on_progress,
                sleep=self._sleep,
            )

    def scrub_device(
        self, uuid: str, *, baseline_mib: int | None = None, deadline_s: float = 120.0
    ) -> ScrubResult:
        """Return a scripted result, marked as simulated."""
        with self._call():
            device = self._device(uuid)
            if self.faults.check_s:
                self._sleep(self.faults.check_s)
            if device is None:
                text = f"This simulated node has no device {uuid}. Refresh the inventory."
                return ScrubResult(uuid, ScrubVerdict.UNAVAILABLE, text, library="device", simulated=True)
            device_faults, busy, memory_mib = device
            return faults.scrub_result(
                uuid,
                memory_mib=memory_mib,
                faults=device_faults,
                busy=busy,
                baseline_mib=baseline_mib,
            )

    def reset_device(self, uuid: str, *, bus: str = "", deadline_s: float = 120.0) -> ResetResult:
        """Return that nothing was reset; scripted faults remain."""
        with self._call():
            if self._device(uuid) is None:
                text = f"This simulated node has no device {uuid}. Refresh the inventory."
                return ResetResult(uuid, ResetVerdict.REFUSED, text, simulated=True)
            text = "Simulated: no GPU was reset."
            return ResetResult(uuid, ResetVerdict.DONE, text, simulated=True)

    def repartition_device(self, change: MigRepartition) -> tuple[str, ...]:
        """See `Driver.repartition_device`. One transaction, between two scrubs."""
        place = hardware.place_of(self.pool.slug, self.topology, change.parent_uuid)
        if place is None or not self.topology.layout:
            raise NoCapacity(
                f"This simulated pool has no GPU {change.parent_uuid} in MIG mode. Refresh the inventory."
            )
        self._scrub_all(change.destroy)
        with self._call():
            if self.topology.refuse_repartitions:
                raise NoCapacity(
                    "This simulated GPU rejected the MIG layout, as scripted, and kept the old one."
                )
            with self._change() as book:
                if self._has_vanished(place[0], book.epoch(), book.now):
                    raise _node_offline(place[0])
                created = mig.change(book.connection, self.topology, change, book.usage())
        self._scrub_all(created)
        return created

    def _scrub_all(self, uuids: Sequence[str]) -> None:
        results = [self.scrub_device(uuid) for uuid in uuids]
        # A missing instance was destroyed by an earlier attempt of this change.
        unclean = [
            result.uuid
            for result in results
            if result.verdict not in (ScrubVerdict.CLEAN, ScrubVerdict.BUSY, ScrubVerdict.UNAVAILABLE)
        ]
        if unclean:
            raise UncleanDevices(
                "A MIG instance could not be verified clean. Check its GPU.", devices=tuple(unclean)
            )

    # For tests

    def usage(self) -> dict[str, int]:
        """Return the allocated thousandths of each device in use, by UUID."""
        with self._view() as book:
            return book.usage()

    def over_grants(self) -> tuple[str, ...]:
        """Return the reasons of all starts that would have allocated something twice."""
        with self._view() as book:
            return tuple(row["reason"] for row in book.connection.execute("SELECT reason FROM over_grants"))

    def starts(self, ref: WorkspaceRef) -> int:
        """Return the number of starts of the workspace, one for each generation that ran."""
        with self._view() as book:
            return book.starts(ref.external_name)

    def homes(self) -> frozenset[str]:
        """Return the keys of all home volumes, which outlive workspaces."""
        with self._view() as book:
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
    def _view(self) -> Iterator[rows.PoolRows]:
        now = self._clock()
        with self._store.read(now) as connection:
            book = rows.PoolRows(connection, now)
            book.offline = self._offline_names(book)
            yield book

    @contextmanager
    def _change(self) -> Iterator[rows.PoolRows]:
        now = self._clock()
        with self._store.write(now) as connection:
            book = rows.PoolRows(connection, now)
            book.offline = self._offline_names(book)
            book.purge()
            yield book

    def _has_vanished(self, node: str, epoch: float, now: float) -> bool:
        return self.script.has_vanished(node, epoch=epoch, now=now)

    def _with_instances(self, node: NodeInfo, layouts: Mapping[str, tuple[mig.Instance, ...]]) -> NodeInfo:
        devices: list[DeviceInfo] = []
        for gpu in node.devices:
            devices += (gpu, *mig.devices(gpu, self.topology, layouts.get(gpu.uuid)))
        return replace(node, devices=tuple(devices))

    def _place(self, book: rows.PoolRows, uuid: str) -> tuple[tuple[str, int] | None, int]:
        """Return the node and index of a GPU, or of an instance's parent, and the device's memory."""
        gpu_and_instance = mig.find(book.connection, self.pool.slug, self.topology, uuid)
        if gpu_and_instance is not None:
            gpu, instance = gpu_and_instance
            return hardware.place_of(self.pool.slug, self.topology, gpu), mig.memory_of(
                self.topology, instance
            )
        return hardware.place_of(self.pool.slug, self.topology, uuid), self.topology.gpu_memory_mib

    def _device(self, uuid: str) -> tuple[frozenset[str], bool, int] | None:
        """Return a device's faults, whether it is in use, and its memory; None if it does not exist."""
        with self._view() as book:
            place, memory_mib = self._place(book, uuid)
            epoch = book.epoch()
            if place is None:
                return None
            if self._has_vanished(place[0], epoch, book.now):
                raise _node_offline(place[0])
            wrong = self.faults.faults_of(*place, epoch=epoch, now=book.now)
            return None if "vanish" in wrong else (wrong, book.used_of(uuid) > 0, memory_mib)

    def _without_vanished(self, node: NodeInfo, epoch: float, now: float) -> NodeInfo:
        present = tuple(
            device
            for device in node.devices
            if "vanish" not in self.faults.faults_of(node.name, device.index, epoch=epoch, now=now)
        )
        return node if len(present) == len(node.devices) else replace(node, devices=present)

    def _offline_names(self, book: rows.PoolRows) -> dict[str, str]:
        """Return the workspaces with a part on an offline node, with that node."""
        if not self.script.vanish_nodes:
            return {}
        epoch = book.epoch()
        away = [node for node in self.script.vanish_nodes if self._has_vanished(node, epoch, book.now)]
        return {name: node for node in sorted(away) for name in book.names_on(node)}

    def _start(
        self, book: rows.PoolRows, spec: WorkspaceSpec, placement: Placement, call: int
    ) -> Observation | ProvisioningError:
        ref, name = spec.ref, spec.ref.external_name
        if ref.generation <= book.closed_generation(name):
            return StaleCommand("The workspace was stopped after this start. Start the workspace again.")
        row = book.row(name)
        if row is not None:
            if row.generation > ref.generation:
                return StaleCommand("A later run of this workspace exists. Open the later run.")
            if name in book.offline:
                return _node_offline(book.offline[name])
            if row.generation == ref.generation and row.digest == spec.digest():
                return book.observe_ref(ref)
            if row.ended_at is None:
                return Conflict(
                    "The workspace is running with other settings. Stop the workspace, then start it again.",
                    detail=f"generation {row.generation} digest {row.digest}",
                )
            if book.now < row.ended_at:
                return StartFailed("The last run of this workspace is still stopping. Try again in a moment.")
        problem = self._check_placement(book, spec, placement)
        if problem is None and self._picks(self.script.refuse_capacity, "refuse_capacity", spec, call):
            problem = NoCapacity(
                "This simulated pool has no capacity for this start, as scripted. Try again."
            )
        if problem is None:
            problem = self._check_over_grant(book, spec, placement)
        if problem is None and self._picks(self.script.fail_starts, "fail_starts", spec, call):
            problem = StartFailed("This simulated pool failed this start, as scripted. Try again.")
        if problem is not None:
            return problem
        script = self.script
        ready_at: float | None = book.now + script.start_delay_s
        failed_at, code, exit_code = None, "", None
        if self._picks(script.never_ready, "never_ready", spec, call):
            ready_at, code = None, "start_timeout"
            failed_at = book.now + spec.app.start_timeout_s
        if script.crash_after_s is not None and self._picks(script.crashes, "crashes", spec, call):
            crash_at = book.now + script.crash_after_s
            if failed_at is None or crash_at <= failed_at:
                failed_at, code, exit_code = crash_at, "app_exited", script.crash_exit_code
        book.insert(
            spec,
            placement,
            ready_at=ready_at,
            failed_at=failed_at,
            failure_code=code,
            exit_code=exit_code,
        )
        return book.observe_ref(ref)

    def _end(self, ref: WorkspaceRef, *, deleting: bool, grace_s: float | None) -> Observation:
        name = ref.external_name
        with self._call():
            with self._change() as book:
                call = book.count_call(name)
                row = book.row(name)
                outcome: Observation | ProvisioningError
                if row is not None and row.generation > ref.generation:
                    outcome = StaleCommand(
                        "The workspace was started again after this request. Repeat the request."
                    )
                else:
                    book.close(name, ref.generation)
                    # An offline node cannot be reached; the reconciler retries.
                    if row is not None and name not in book.offline:
                        takes_s = self.script.stop_delay_s
                        book.end(
                            row, takes_s if grace_s is None else min(takes_s, grace_s), deleting=deleting
                        )
                    outcome = book.observe_ref(ref)
            return self._answer(outcome, ref, row.display_name if row else "", call)

    def _answer(
        self, outcome: Observation | ProvisioningError, ref: WorkspaceRef, name: str, call: int
    ) -> Observation:
        if self.script.lose_replies.selects(
            seed=self.script.seed,
            kind="lose_replies",
            name=name,
            external_name=ref.external_name,
            call=call,
        ):
            raise BackendUnavailable(
                "The response of this simulated pool was lost, as scripted. Try again.", detail=repr(outcome)
            )
        if isinstance(outcome, ProvisioningError):
            raise outcome
        return outcome

    def _picks(self, selector: Selector, kind: str, spec: WorkspaceSpec, call: int) -> bool:
        return selector.selects(
            seed=self.script.seed,
            kind=kind,
            name=spec.name,
            external_name=spec.ref.external_name,
            call=call,
        )

    def _check_placement(
        self, book: rows.PoolRows, spec: WorkspaceSpec, placement: Placement
    ) -> ProvisioningError | None:
        """Return the problem of a placement, regardless of other workspaces."""
        request, epoch, now = spec.resources, book.epoch(), book.now
        names = [part.node for part in placement.nodes]
        if len(names) != request.nodes or len(set(names)) != len(names):
            return StartFailed(
                f"The placement has {len(set(names))} nodes, and the flavor needs {request.nodes}. "
                "Start the workspace again."
            )
        for part in placement.nodes:
            if not hardware.has_node(self.pool.slug, self.topology, part.node):
                return StartFailed(f"This pool has no node {part.node}. Refresh the inventory and try again.")
            if self._has_vanished(part.node, epoch, now):
                return _node_offline(part.node)
            for grant in part.devices:
                place, _ = self._place(book, grant.uuid)
                split = bool(self.topology.layout) and grant.uuid.startswith("SIM-GPU-")
                if (
                    place is None
                    or split
                    or place[0] != part.node
                    or "vanish" in self.faults.faults_of(*place, epoch=epoch, now=now)
                ):
                    return StartFailed(
                        f"Node {part.node} has no device {grant.uuid}. Refresh the inventory and try again."
                    )
            grants = sorted(grant.milli for grant in part.devices)
            if grants != [request.accelerators.share_milli] * request.accelerators.count or len(
                {grant.uuid for grant in part.devices}
            ) != len(grants):
                return StartFailed(
                    f"The placed devices of {part.node} do not match the flavor. Start the workspace again.",
                    detail=f"granted {grants}, requested {request.accelerators}",
                )
        return None

    def _check_over_grant(
        self, book: rows.PoolRows, spec: WorkspaceSpec, placement: Placement
    ) -> ProvisioningError | None:
        """Return `NoCapacity` if something would be allocated twice, and record the attempt."""
        topology, request = self.topology, spec.resources
        for part in placement.nodes:
            cpu, memory, disk = book.used_on(part.node)
            sums = [
                (cpu + request.cpu_milli, topology.cpu_milli, f"milli-CPU of {part.node}"),
                (memory + request.memory_mib, topology.memory_mib, f"MiB of memory of {part.node}"),
                (disk + request.disk_mib, topology.disk_mib, f"MiB of disk of {part.node}"),
            ]
            sums += [
                (book.used_of(grant.uuid) + grant.milli, WHOLE_DEVICE_MILLI, f"thousandths of {grant.uuid}")
                for grant in part.devices
            ]
            for total, limit, resource in sums:
                if total > limit:
                    reason = f"{spec.ref.external_name}: {total} of {limit} {resource}"
                    book.record_over_grant(spec.ref.external_name, reason)
                    return NoCapacity(
                        f"{part.node} has no capacity for this workspace. Wait, or choose another node.",
                        detail=reason,
                    )
        return None


def _node_offline(node: str) -> BackendUnavailable:
    return BackendUnavailable(f"Node {node} does not answer. Check or cordon the node.", detail="scripted")


def _time_of(cursor: str) -> float | None:
    try:
        return float(cursor)
    except ValueError:
        return None
