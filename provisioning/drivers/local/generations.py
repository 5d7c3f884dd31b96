"""Sequence of a workspace's generations: checks before a start, and closing and ending one.

The caller holds the folder's operation lock. A closed generation never starts again (ADR 0004).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from provisioning.drivers.local import cgroups, network, processes, state
from provisioning.drivers.local.failures import StillStopping, suppressed_when_full
from provisioning.drivers.local.observation import observe_workspace
from provisioning.errors import Conflict, StaleCommand
from provisioning.types import Observation, ObservedState, WorkspaceRef, WorkspaceSpec

# Grace period of the agent beyond the app's stop timeout; then it is killed too.
STOP_GRACE_S = 8
# A failed launch may be retried within its generation; an app that ran may not.
REPEATABLE = frozenset({"port_taken", "launch_failed"})
STARTED_STATES = (ObservedState.STARTING, ObservedState.RUNNING)


def check_before_start(folder: state.WorkspaceDir, spec: WorkspaceSpec, instance: str) -> Observation | None:
    """Return an observation that answers the start, or None if it may proceed.

    Raises `StaleCommand` (a later stop or start is known), `Conflict` (something else runs instead) and
    `StillStopping`.
    """
    ref, record = spec.ref, folder.record()
    newest = max(folder.closed_generation(), record.generation - 1 if record else 0)
    if ref.generation <= newest:
        raise StaleCommand("The workspace was stopped after this start. Start the workspace again.")
    if record is None:
        if folder.alive() or processes.scan(instance, folder.name, spares=folder.claimed()):
            raise Conflict("Processes of this workspace run without a record. Delete the workspace.")
        return None
    observation = observe_workspace(folder, ref, instance, locked=True)
    if record.generation == ref.generation:
        if record.spec_digest != spec.digest():
            raise Conflict(
                "The workspace is running with other settings. Stop the workspace, then start it again."
            )
        if observation.state is ObservedState.ABSENT or observation.code in REPEATABLE:
            return None
        return observation
    if observation.state in STARTED_STATES and not record.closed:
        raise Conflict(
            "An earlier start of this workspace is still running. Stop the workspace, then start it again."
        )
    if observation.state in (*STARTED_STATES, ObservedState.STOPPING, ObservedState.UNKNOWN):
        raise StillStopping("The workspace is still stopping. The portal starts it automatically afterwards.")
    return None


def close_and_end(
    folder: state.WorkspaceDir, ref: WorkspaceRef, instance: str, *, grace_s: float | None
) -> bool:
    """Close the generation and end its processes; return True once nothing is left.

    Raises `StaleCommand` if a newer generation exists, which must not be ended.
    """
    record = folder.record()
    if record is not None and record.generation > ref.generation:
        raise StaleCommand("The workspace was started again after this request. Repeat the request.")
    folder.close_generation(ref.generation)
    if record is not None:
        record = folder.mark_closed(record)
    recorded = [Path(path) for path in record.cgroups] if record else []
    current = cgroups.paths(cgroups.detect(instance), folder.name)
    groups = list(dict.fromkeys((*recorded, *current)))
    owned = processes.scan(instance, folder.name, spares=folder.claimed())
    inside = cgroups.pids(groups)
    alive = folder.alive()
    if not alive and not network.end(folder.path):
        return False
    if not alive and not owned and not inside:
        kills = cgroups.oom_kills(groups)
        if record is not None and kills:
            with suppressed_when_full():
                within = cgroups.kept_within_memory(groups)
                folder.write_record(replace(record, oom_kills=kills, kept_within_memory=within))
        return cgroups.remove(groups)
    agents = [process for process in owned if process.is_agent]
    if grace_s is None and record is not None:
        grace_s = record.stop_timeout_s + STOP_GRACE_S
    overdue = record is None or grace_s is None or time.time() > record.stop_requested_at + grace_s
    if alive and agents and not overdue:
        _terminate(agents)
    else:
        # Overdue, and no agent can shut it down cleanly.
        processes.kill(owned, inside)
        _kill_recorded(folder)
    return False


def still_stopping(folder: state.WorkspaceDir, ref: WorkspaceRef) -> Observation:
    """Return the observation while parts of the workspace are left."""
    record = folder.record()
    return Observation(
        ref if record is None else WorkspaceRef(ref.workspace_id, record.generation),
        ObservedState.STOPPING,
        spec_digest=record.spec_digest if record else "",
    )


def _kill_recorded(folder: state.WorkspaceDir) -> None:
    """Kill the launched process itself, even if its environment is unreadable."""
    launched = folder.launched()
    if launched is None or launched.boot_id != processes.boot_id():
        return
    same = processes.start_ticks(launched.pid) == launched.start_ticks
    with contextlib.suppress(OSError):
        processes.kill((), [launched.pid] if same else ())


def _terminate(agents: Iterable[processes.OwnedProcess]) -> None:
    for agent in agents:
        processes.send(agent, signal.SIGTERM)
