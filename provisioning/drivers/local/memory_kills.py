"""Programs that the kernel ended for lack of memory, by the counters of workspaces' control groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioning.drivers.local import cgroups, state

KILL = "oom-kill:"
GROUP, PROGRAM, PID = ",task_memcg=", ",task=", ",pid="


@dataclass(frozen=True, slots=True)
class KillCounter:
    """A living workspace, and the number of its programs ended since the start `attempt`."""

    name: str
    workspace_id: str
    generation: int
    attempt: str
    kills: int
    memory_mib: int
    groups: tuple[Path, ...]


def counters(base: Path) -> list[KillCounter]:
    """Return the counters of all living workspaces, without those that lost no program."""
    result = []
    for name in state.names(base):
        folder = state.WorkspaceDir(base, name)
        record = folder.record()
        if record is None or record.closed:
            continue
        groups = tuple(Path(path) for path in record.cgroups)
        kills = cgroups.oom_kills(groups)
        agent = folder.agent_state() if kills else None
        if agent is not None and agent.phase != "exited" and folder.alive():
            result.append(
                KillCounter(
                    *(name, record.workspace_id, record.generation, record.attempt),
                    *(kills, record.memory_mib, groups),
                )
            )
    return result


def victims(lines: Iterable[str]) -> dict[str, str]:
    """Return from lines of the kernel's log the program ended last, by the name of its control group.

    A line is `oom-kill:constraint=…,task_memcg=/berth-…/ws-…,task=python3,pid=27555,uid=200000`. A program
    chooses its name, which comes after its group and may contain commas.
    """
    programs = {}
    for line in lines:
        if line.startswith(KILL):
            group, _, suffix = line.partition(GROUP)[2].partition(PROGRAM)
            program, pid, _ = suffix.rpartition(PID)
            if pid:
                programs[Path(group).name] = program
    return programs
