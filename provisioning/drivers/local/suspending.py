"""Suspend a running workspace's GPU use: free its GPU memory and keep the state of its kernels.

The kernel determines its CUDA processes (PID namespace, control group, mapped libraries), the driver their
states, and NVML their memory. A workspace counts as suspended only if all three agree. The allocation of the
GPUs remains: no other workspace gets them (ADR 0064).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from provisioning.drivers.local import cgroups, processes, state
from provisioning.drivers.local.failures import Busy
from provisioning.drivers.local.state import WorkspaceDir, write_atomically
from provisioning.gpu.suspend import grant, room
from provisioning.gpu.suspend.run import ChildAnswer, GpuSnapshot, drive_processes, read_states
from provisioning.gpu.suspend.states import ProcessState, TargetState, end_of
from provisioning.gpu.suspend.walk import SuspendOutcome

PROVIDES_SUSPEND = "suspend"
"""Feature of a node on which a trial succeeded."""
ROUNDS = 3
"""How often processes that opened CUDA meanwhile are suspended too, before giving up."""
MEMINFO = Path("/proc/meminfo")
WORKSPACE, NODE = "workspace", "node"
HELD_UP = frozenset({ProcessState.LOCKED, ProcessState.CHECKPOINTED, ProcessState.UNKNOWN})


class SuspendProblem(StrEnum):
    """Why a workspace was not suspended or resumed."""

    NOT_RUNNING = "not_running"
    NOT_GRANTED = "not_granted"
    NO_CUDA = "no_cuda"
    NOT_TOLD = "not_told"
    NOT_SEEN = "not_seen"
    LOST = "lost"
    OTHER_MODEL = "other_model"
    SHARED = "shared"
    NO_ROOM = "no_room"
    REFUSED = "refused"
    STILL_THERE = "still_there"
    NEVER_ENDING = "never_ending"


@dataclass(frozen=True, slots=True)
class Suspension:
    """A suspension in progress, on disk."""

    boot_id: str
    generation: int
    is_complete: bool
    gpus: tuple[str, ...]
    held_bytes: int


@dataclass(frozen=True, slots=True)
class SuspendReport:
    """Outcome: `end` is None if processes are in neither state; `problem` is empty on success."""

    end: TargetState | None
    problem: SuspendProblem | str = ""
    detail: str = ""
    held_bytes: int = 0
    gpus: tuple[str, ...] = ()
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    short: room.Shortage | None = None


ProgressCallback = Callable[[str, int], object]


def _ignore_progress(_call: str, _pid: int) -> None:
    pass


class Suspender:
    """Suspends and resumes workspaces of one installation."""

    def __init__(self, base: Path, instance: str) -> None:
        self.base, self.instance = base, instance

    def refusal(self, driver: str) -> str:
        """Return why this machine must not suspend, from `grant.refusal`; empty if it may."""
        return grant.refusal(grant.load(self.base), driver=driver, instance=self.instance)

    def suspend(self, name: str, *, on_progress: ProgressCallback = _ignore_progress) -> SuspendReport:
        """Move all its CUDA processes off its GPUs, or leave everything as it was.

        Idempotent. Raises `Busy` and `OSError`.
        """
        folder = WorkspaceDir(self.base, name)
        with folder.operation():
            record = folder.record()
            if record is None or record.closed or not folder.alive():
                return SuspendReport(TargetState.RUNNING, SuspendProblem.NOT_RUNNING)
            pids = self._cuda_processes(folder)
            snapshot = read_states(pids)
            refused = self._refusal(folder, record, snapshot)
            if refused is not None:
                return refused
            if end_of(snapshot.states) is TargetState.SUSPENDED:
                suspension = load(folder)
                return SuspendReport(
                    TargetState.SUSPENDED, gpus=suspension.gpus if suspension else (), states=snapshot.states
                )
            memory_bytes = room.held_bytes(snapshot.before, pids)
            gpus = tuple(snapshot.before.used_by(pids))
            self._save_suspension(folder, gpus, memory_bytes, is_complete=False)
            return self._suspend(folder, gpus, memory_bytes, on_progress)

    def resume(self, name: str, *, on_progress: ProgressCallback = _ignore_progress) -> SuspendReport:
        """Move all its CUDA processes back to their GPUs, or leave all suspended.

        Idempotent. Raises `Busy` and `OSError`.
        """
        folder = WorkspaceDir(self.base, name)
        with folder.operation():
            if not folder.alive():
                return SuspendReport(TargetState.RUNNING, SuspendProblem.NOT_RUNNING)
            return self._resume(folder, on_progress)

    def recover(self) -> tuple[SuspendReport, ...]:
        """Resume workspaces whose suspension or resumption was interrupted by a kill.

        Skips workspaces with an operation in progress.
        """
        reports = []
        for name in state.names(self.base):
            folder = WorkspaceDir(self.base, name)
            suspension = load(folder)
            if suspension is None or suspension.is_complete or folder.operation_held():
                continue
            with contextlib.suppress(Busy), folder.operation():
                suspension = load(folder)
                if suspension is not None and not suspension.is_complete:
                    reports.append(self._resume(folder, _ignore_progress))
        return tuple(reports)

    # -- parts ------------------------------------------------------------------------------

    def _refusal(
        self, folder: WorkspaceDir, record: state.StartRecord, snapshot: ChildAnswer
    ) -> SuspendReport | None:
        """Return why the suspension is refused, or None. A suspended workspace is not refused."""

        def no(problem: SuspendProblem, detail: str = "") -> SuspendReport:
            return SuspendReport(end_of(snapshot.states), problem, detail, states=snapshot.states)

        if snapshot.failure or snapshot.before.problem:
            return no(SuspendProblem.NOT_TOLD, snapshot.failure or snapshot.before.problem)
        refusal = self.refusal(snapshot.before.driver)
        if refusal:
            return no(SuspendProblem.NOT_GRANTED, refusal)
        cuda_states = {
            pid: process_state
            for pid, process_state in snapshot.states.items()
            if process_state is not ProcessState.NONE
        }
        if not cuda_states:
            return no(SuspendProblem.NO_CUDA)
        broken_pids = [
            pid
            for pid, process_state in cuda_states.items()
            if process_state in (ProcessState.FAILED, ProcessState.UNKNOWN)
        ]
        if broken_pids:
            return no(SuspendProblem.LOST, ", ".join(map(str, broken_pids)))
        if not snapshot.before.is_complete:
            return no(SuspendProblem.NOT_TOLD)
        if end_of(cuda_states) is TargetState.SUSPENDED:
            return None
        if record.shares:
            # Other workspaces use that GPU, so freed memory may be taken on resume.
            return no(SuspendProblem.SHARED, ", ".join(share.uuid for share in record.shares))
        used = snapshot.before.used_by(cuda_states)
        if not used and ProcessState.CHECKPOINTED not in cuda_states.values():
            # No process is visible: NVML sees another PID namespace than this node.
            return no(SuspendProblem.NOT_SEEN)
        trial = grant.load(self.base)
        other_models = {snapshot.before.gpus[uuid].model for uuid in used} - {trial.model if trial else ""}
        if other_models:
            return no(SuspendProblem.OTHER_MODEL, ", ".join(sorted(other_models)))
        short = room.shortage(room.held_bytes(snapshot.before, cuda_states), self._free(folder, record))
        if short is not None:
            return SuspendReport(
                end_of(cuda_states), SuspendProblem.NO_ROOM, states=snapshot.states, short=short
            )
        return None

    def _suspend(
        self, folder: WorkspaceDir, gpus: tuple[str, ...], memory_bytes: int, on_progress: ProgressCallback
    ) -> SuspendReport:
        pids = self._cuda_processes(folder)
        for _ in range(ROUNDS):
            answer = drive_processes(
                pids, TargetState.SUSPENDED, memory_bytes=memory_bytes, on_call=on_progress
            )
            outcome = answer.outcome
            if outcome is None or not outcome.is_reached:
                return self._report(folder, answer, gpus, memory_bytes)
            all_now = self._cuda_processes(folder)
            newer = read_states(all_now - pids)
            if newer.failure or any(
                process_state is not ProcessState.NONE for process_state in newer.states.values()
            ):
                # Opened CUDA meanwhile, or unknown: suspend those too.
                pids |= all_now
                continue
            if not self._is_off_gpus(folder, newer.before):
                return self._roll_back(folder, pids, SuspendProblem.STILL_THERE, gpus, memory_bytes)
            self._save_suspension(folder, gpus, memory_bytes, is_complete=True)
            return SuspendReport(
                TargetState.SUSPENDED, gpus=gpus, held_bytes=memory_bytes, states=outcome.states
            )
        return self._roll_back(folder, pids, SuspendProblem.NEVER_ENDING, gpus, memory_bytes)

    def _roll_back(
        self,
        folder: WorkspaceDir,
        pids: Iterable[int],
        problem: SuspendProblem,
        gpus: tuple[str, ...],
        memory_bytes: int,
    ) -> SuspendReport:
        """Resume all processes, since the suspension failed."""
        answer = drive_processes(pids, TargetState.RUNNING, memory_bytes=memory_bytes)
        report = self._report(folder, answer, gpus, memory_bytes)
        return SuspendReport(report.end, problem, held_bytes=memory_bytes, gpus=gpus, states=report.states)

    def _resume(self, folder: WorkspaceDir, on_progress: ProgressCallback) -> SuspendReport:
        suspension = load(folder)
        pids = self._cuda_processes(folder)
        gpus, memory_bytes = (suspension.gpus, suspension.held_bytes) if suspension else ((), 0)
        if not pids:
            folder.suspended_file.unlink(missing_ok=True)
            return SuspendReport(TargetState.RUNNING, gpus=gpus)
        self._save_suspension(folder, gpus, memory_bytes, is_complete=False)
        return self._report(
            folder,
            drive_processes(pids, TargetState.RUNNING, memory_bytes=memory_bytes, on_call=on_progress),
            gpus,
            memory_bytes,
        )

    def _report(
        self, folder: WorkspaceDir, answer: ChildAnswer, gpus: tuple[str, ...], memory_bytes: int
    ) -> SuspendReport:
        """Return a report of a walk, and update the record on disk."""
        outcome = answer.outcome
        if outcome is None:
            # It never began, so nothing changed; the next call retries.
            return SuspendReport(None, SuspendProblem.REFUSED, answer.failure, memory_bytes, gpus)
        if outcome.end is TargetState.SUSPENDED:
            self._save_suspension(folder, gpus, memory_bytes, is_complete=True)
        elif not set(outcome.states.values()) & HELD_UP:
            # All processes that can run do, so nothing is left to resume, even if one is lost.
            folder.suspended_file.unlink(missing_ok=True)
        problem = "" if outcome.is_reached else SuspendProblem.REFUSED
        return SuspendReport(outcome.end, problem, _failure_text(outcome), memory_bytes, gpus, outcome.states)

    def _is_off_gpus(self, folder: WorkspaceDir, after: GpuSnapshot) -> bool:
        """Return whether no process of the workspace uses any GPU."""
        return after.is_complete and not after.used_by(self._processes(folder))

    def _save_suspension(
        self, folder: WorkspaceDir, gpus: tuple[str, ...], memory_bytes: int, *, is_complete: bool
    ) -> None:
        record = folder.record()
        generation = record.generation if record else 0
        suspension = Suspension(processes.boot_id(), generation, is_complete, gpus, memory_bytes)
        write_atomically(folder.suspended_file, json.dumps(asdict(suspension)).encode())

    def _processes(self, folder: WorkspaceDir) -> frozenset[int]:
        owned = processes.scan(self.instance, folder.name, spares=folder.claimed())
        record = folder.record()
        groups = _groups(record, self.instance, folder.name) if record else ()
        return frozenset(process.pid for process in owned) | cgroups.pids(groups)

    def _cuda_processes(self, folder: WorkspaceDir) -> frozenset[int]:
        """Return processes that may have opened CUDA: its library is mapped, or the maps are unreadable."""
        return frozenset(pid for pid in self._processes(folder) if _may_use_cuda(pid))

    def _free(self, folder: WorkspaceDir, record: state.StartRecord) -> dict[str, int]:
        """Return free memory of the workspace and of the node, in bytes."""
        free_bytes = {}
        limited = cgroups.memory_free_bytes(_groups(record, self.instance, folder.name))
        if limited is not None:
            free_bytes[WORKSPACE] = limited
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes[NODE] = int(line.split()[1]) << 10
        return free_bytes


def load(folder: WorkspaceDir) -> Suspension | None:
    """Return the suspension of this very start of a workspace; None if there is none."""
    suspension, record = state.load(folder.suspended_file, Suspension), folder.record()
    if suspension is None or record is None or suspension.generation != record.generation:
        return None
    return suspension if suspension.boot_id == processes.boot_id() else None


def _groups(record: state.StartRecord, instance: str, name: str) -> tuple[Path, ...]:
    current = cgroups.paths(cgroups.detect(instance), name)
    return tuple(dict.fromkeys((*(Path(path) for path in record.cgroups), *current)))


def _may_use_cuda(pid: int) -> bool:
    try:
        return "/libcuda.so" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _failure_text(outcome: SuspendOutcome) -> str:
    failure = outcome.trouble
    return " ".join(filter(None, (failure.call, failure.name))) if failure else ""
