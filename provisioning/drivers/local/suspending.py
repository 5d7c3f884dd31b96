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
from provisioning.gpu.suspend.run import ChildAnswer, GpuSnapshot, bring, look
from provisioning.gpu.suspend.states import Goal, ProcessState, end_of
from provisioning.gpu.suspend.walk import SuspendOutcome

PROVIDES_SUSPEND = "suspend"
"""Feature of a node on which a trial succeeded."""
ROUNDS = 3
"""How often processes that opened CUDA meanwhile are suspended too, before giving up."""
MEMINFO = Path("/proc/meminfo")
WORKSPACE, NODE = "workspace", "node"
HELD_UP = frozenset({ProcessState.LOCKED, ProcessState.CHECKPOINTED, ProcessState.UNKNOWN})


class Problem(StrEnum):
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
class Suspended:
    """A suspension in progress, on disk. `settled`: it is complete."""

    boot_id: str
    generation: int
    settled: bool
    gpus: tuple[str, ...]
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome: `end` is None if processes are in neither state; `problem` is empty on success."""

    end: Goal | None
    problem: Problem | str = ""
    detail: str = ""
    held_bytes: int = 0
    gpus: tuple[str, ...] = ()
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    short: room.Shortage | None = None


Tell = Callable[[str, int], object]


def _silent(_call: str, _pid: int) -> None:
    pass


class Suspending:
    """Suspends and resumes workspaces of one installation."""

    def __init__(self, base: Path, instance: str) -> None:
        self.base, self.instance = base, instance

    def granted(self, driver: str) -> str:
        """Return why this machine must not suspend, from `grant.refusal`; empty if it may."""
        return grant.refusal(grant.load(self.base), driver=driver, instance=self.instance)

    def suspend(self, name: str, *, tell: Tell = _silent) -> Report:
        """Move all its CUDA processes off its GPUs, or leave everything as it was.

        Idempotent. Raises `Busy` and `OSError`.
        """
        folder = WorkspaceDir(self.base, name)
        with folder.operation():
            record = folder.record()
            if record is None or record.closed or not folder.alive():
                return Report(Goal.RUNNING, Problem.NOT_RUNNING)
            found = self._cuda_processes(folder)
            seen = look(found)
            refused = self._refused(folder, record, seen)
            if refused is not None:
                return refused
            if end_of(seen.states) is Goal.SUSPENDED:
                kept = load(folder)
                return Report(Goal.SUSPENDED, gpus=kept.gpus if kept else (), states=seen.states)
            held = room.held_bytes(seen.before, found)
            gpus = tuple(seen.before.used_by(found))
            self._note(folder, gpus, held, settled=False)
            return self._suspend(folder, gpus, held, tell)

    def resume(self, name: str, *, tell: Tell = _silent) -> Report:
        """Move all its CUDA processes back to their GPUs, or leave all suspended.

        Idempotent. Raises `Busy` and `OSError`.
        """
        folder = WorkspaceDir(self.base, name)
        with folder.operation():
            if not folder.alive():
                return Report(Goal.RUNNING, Problem.NOT_RUNNING)
            return self._resume(folder, tell)

    def recover(self) -> tuple[Report, ...]:
        """Resume workspaces whose suspension or resumption was interrupted by a kill.

        Skips workspaces with an operation in progress.
        """
        done = []
        for name in state.names(self.base):
            folder = WorkspaceDir(self.base, name)
            kept = load(folder)
            if kept is None or kept.settled or folder.operation_held():
                continue
            with contextlib.suppress(Busy), folder.operation():
                kept = load(folder)
                if kept is not None and not kept.settled:
                    done.append(self._resume(folder, _silent))
        return tuple(done)

    # -- parts ------------------------------------------------------------------------------

    def _refused(self, folder: WorkspaceDir, record: state.Record, seen: ChildAnswer) -> Report | None:
        """Return why the suspension is refused, or None. A suspended workspace is not refused."""

        def no(problem: Problem, detail: str = "") -> Report:
            return Report(end_of(seen.states), problem, detail, states=seen.states)

        if seen.trouble or seen.before.problem:
            return no(Problem.NOT_TOLD, seen.trouble or seen.before.problem)
        refusal = self.granted(seen.before.driver)
        if refusal:
            return no(Problem.NOT_GRANTED, refusal)
        there = {pid: each for pid, each in seen.states.items() if each is not ProcessState.NONE}
        if not there:
            return no(Problem.NO_CUDA)
        odd = [pid for pid, each in there.items() if each in (ProcessState.FAILED, ProcessState.UNKNOWN)]
        if odd:
            return no(Problem.LOST, ", ".join(map(str, odd)))
        if not seen.before.tells_all:
            return no(Problem.NOT_TOLD)
        if end_of(there) is Goal.SUSPENDED:
            return None
        if record.shares:
            # Other workspaces use that GPU, so freed memory may be taken on resume.
            return no(Problem.SHARED, ", ".join(share.uuid for share in record.shares))
        used = seen.before.used_by(there)
        if not used and ProcessState.CHECKPOINTED not in there.values():
            # No process is visible: NVML sees another PID namespace than this node.
            return no(Problem.NOT_SEEN)
        trial = grant.load(self.base)
        others = {seen.before.gpus[uuid].model for uuid in used} - {trial.model if trial else ""}
        if others:
            return no(Problem.OTHER_MODEL, ", ".join(sorted(others)))
        short = room.shortage(room.held_bytes(seen.before, there), self._free(folder, record))
        if short is not None:
            return Report(end_of(there), Problem.NO_ROOM, states=seen.states, short=short)
        return None

    def _suspend(self, folder: WorkspaceDir, gpus: tuple[str, ...], held: int, tell: Tell) -> Report:
        found = self._cuda_processes(folder)
        for _ in range(ROUNDS):
            answer = bring(found, Goal.SUSPENDED, memory_bytes=held, tell=tell)
            outcome = answer.outcome
            if outcome is None or not outcome.reached:
                return self._said(folder, answer, gpus, held)
            all_now = self._cuda_processes(folder)
            newer = look(all_now - found)
            if newer.trouble or any(each is not ProcessState.NONE for each in newer.states.values()):
                # Opened CUDA meanwhile, or unknown: suspend those too.
                found |= all_now
                continue
            if not self._gone(folder, newer.before):
                return self._back(folder, found, Problem.STILL_THERE, gpus, held)
            self._note(folder, gpus, held, settled=True)
            return Report(Goal.SUSPENDED, gpus=gpus, held_bytes=held, states=outcome.states)
        return self._back(folder, found, Problem.NEVER_ENDING, gpus, held)

    def _back(
        self, folder: WorkspaceDir, found: Iterable[int], problem: Problem, gpus: tuple[str, ...], held: int
    ) -> Report:
        """Resume all processes, since the suspension failed."""
        answer = bring(found, Goal.RUNNING, memory_bytes=held)
        report = self._said(folder, answer, gpus, held)
        return Report(report.end, problem, held_bytes=held, gpus=gpus, states=report.states)

    def _resume(self, folder: WorkspaceDir, tell: Tell) -> Report:
        kept = load(folder)
        found = self._cuda_processes(folder)
        gpus, held = (kept.gpus, kept.held_bytes) if kept else ((), 0)
        if not found:
            folder.suspended_file.unlink(missing_ok=True)
            return Report(Goal.RUNNING, gpus=gpus)
        self._note(folder, gpus, held, settled=False)
        return self._said(folder, bring(found, Goal.RUNNING, memory_bytes=held, tell=tell), gpus, held)

    def _said(self, folder: WorkspaceDir, answer: ChildAnswer, gpus: tuple[str, ...], held: int) -> Report:
        """Return a report of a walk, and update the record on disk."""
        outcome = answer.outcome
        if outcome is None:
            # It never began, so nothing changed; the next call retries.
            return Report(None, Problem.REFUSED, answer.trouble, held, gpus)
        if outcome.end is Goal.SUSPENDED:
            self._note(folder, gpus, held, settled=True)
        elif not set(outcome.states.values()) & HELD_UP:
            # All processes that can run do, so nothing is left to resume, even if one is lost.
            folder.suspended_file.unlink(missing_ok=True)
        problem = "" if outcome.reached else Problem.REFUSED
        return Report(outcome.end, problem, _trouble(outcome), held, gpus, outcome.states)

    def _gone(self, folder: WorkspaceDir, after: GpuSnapshot) -> bool:
        """Return whether no process of the workspace uses any GPU."""
        return after.tells_all and not after.used_by(self._processes(folder))

    def _note(self, folder: WorkspaceDir, gpus: tuple[str, ...], held: int, *, settled: bool) -> None:
        record = folder.record()
        generation = record.generation if record else 0
        made = Suspended(processes.boot_id(), generation, settled, gpus, held)
        write_atomically(folder.suspended_file, json.dumps(asdict(made)).encode())

    def _processes(self, folder: WorkspaceDir) -> frozenset[int]:
        found = processes.scan(self.instance, folder.name, spares=folder.claimed())
        record = folder.record()
        groups = _groups(record, self.instance, folder.name) if record else ()
        return frozenset(each.pid for each in found) | cgroups.pids(groups)

    def _cuda_processes(self, folder: WorkspaceDir) -> frozenset[int]:
        """Return processes that may have opened CUDA: its library is mapped, or the maps are unreadable."""
        return frozenset(pid for pid in self._processes(folder) if _may_use_cuda(pid))

    def _free(self, folder: WorkspaceDir, record: state.Record) -> dict[str, int]:
        """Return free memory of the workspace and of the node, in bytes."""
        found = {}
        limited = cgroups.memory_free_bytes(_groups(record, self.instance, folder.name))
        if limited is not None:
            found[WORKSPACE] = limited
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found[NODE] = int(line.split()[1]) << 10
        return found


def load(folder: WorkspaceDir) -> Suspended | None:
    """Return the suspension of this very start of a workspace; None if there is none."""
    kept, record = state.load(folder.suspended_file, Suspended), folder.record()
    if kept is None or record is None or kept.generation != record.generation:
        return None
    return kept if kept.boot_id == processes.boot_id() else None


def _groups(record: state.Record, instance: str, name: str) -> tuple[Path, ...]:
    here = cgroups.paths(cgroups.detect(instance), name)
    return tuple(dict.fromkeys((*(Path(path) for path in record.cgroups), *here)))


def _may_use_cuda(pid: int) -> bool:
    try:
        return "/libcuda.so" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True


def _trouble(outcome: SuspendOutcome) -> str:
    trouble = outcome.trouble
    return " ".join(filter(None, (trouble.call, trouble.name))) if trouble else ""
