"""Observe one workspace: derive its state from its lock, its records and /proc."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from provisioning.drivers.local import cgroups, network, processes
from provisioning.drivers.local.state import AgentState, StartRecord, WorkspaceDir
from provisioning.endpoints import socket_endpoint
from provisioning.types import Observation, ObservedState, WorkspaceRef

SETTLE_S = 0.25
TAIL_LINES = 50
SIGKILL_EXIT = 137


def observe_workspace(
    folder: WorkspaceDir, ref: WorkspaceRef, instance: str, *, locked: bool = False
) -> Observation:
    """Return the observation of the existing generation, whichever it is. Raises `OSError`.

    `locked`: the caller holds the operation lock, so no other process is launching.
    """
    record = folder.record()
    if record is None:
        return _observe_unrecorded(folder, ref, instance)
    recorded = WorkspaceRef(record.workspace_id, record.generation)
    alive = folder.alive()
    # Read after the lock, since an agent writes its last state before releasing it.
    agent = _own_state(folder, record)
    if alive and agent is not None and agent.phase == "exited":
        # The agent is still reporting its exit to the portal, which is no longer necessary.
        for process in processes.scan(instance, folder.name, spares=folder.claimed()):
            if process.is_agent:
                processes.send(process, signal.SIGTERM)
        alive = not _wait_until(lambda: not folder.alive())
        if alive:
            return Observation(recorded, ObservedState.STOPPING, spec_digest=record.spec_digest)
    if alive:
        return _observe_living(recorded, record, agent)
    return _observe_dead(folder, recorded, record, agent, instance, locked)


def _own_state(folder: WorkspaceDir, record: StartRecord) -> AgentState | None:
    """Return the agent's state if it belongs to this generation and names one of its ports."""
    agent = folder.agent_state()
    if agent is None or agent.generation != record.generation:
        return None
    if agent.port is not None and agent.port not in record.ports:
        return None
    return agent


def _observe_living(recorded: WorkspaceRef, record: StartRecord, agent: AgentState | None) -> Observation:
    if record.closed:
        return Observation(recorded, ObservedState.STOPPING, spec_digest=record.spec_digest)
    if agent is not None and agent.phase == "ready" and agent.port is not None:
        return Observation(
            recorded,
            ObservedState.RUNNING,
            ready=True,
            endpoint=socket_endpoint(recorded),
            spec_digest=record.spec_digest,
        )
    return Observation(recorded, ObservedState.STARTING, spec_digest=record.spec_digest)


def _observe_dead(
    folder: WorkspaceDir,
    recorded: WorkspaceRef,
    record: StartRecord,
    agent: AgentState | None,
    instance: str,
    locked: bool,
) -> Observation:
    """Clean up after a dead agent: the rest of the workspace cannot be recovered and is ended."""
    groups = [Path(path) for path in record.cgroups]
    launched = folder.launched()
    if record.own_network:
        network.end(folder.path)
    if not record.closed and (launched is None or launched.attempt != record.attempt):
        if not locked and folder.operation_held():
            return Observation(recorded, ObservedState.STARTING, spec_digest=record.spec_digest)
        # Recorded but never launched: its worker died before the launch.
        return Observation(recorded, ObservedState.ABSENT)
    leftovers = processes.scan(instance, folder.name, spares=folder.claimed())
    if leftovers or cgroups.pids(groups):
        if record.closed:
            return Observation(recorded, ObservedState.STOPPING, spec_digest=record.spec_digest)

        def end_remaining() -> bool:
            owned, inside = (
                processes.scan(instance, folder.name, spares=folder.claimed()),
                cgroups.pids(groups),
            )
            processes.kill(owned, inside)
            return not owned and not inside

        if not _wait_until(end_remaining):
            return Observation(
                recorded,
                ObservedState.UNKNOWN,
                spec_digest=record.spec_digest,
                code="agent_lost",
                message="The workspace's agent has ended, its processes are still stopping. Wait a moment.",
            )
    if record.closed:
        return Observation(recorded, ObservedState.STOPPED, spec_digest=record.spec_digest)
    code, message = _explain(folder, record, agent)
    return Observation(
        recorded,
        ObservedState.FAILED,
        spec_digest=record.spec_digest,
        exit_code=agent.exit_code if agent is not None and agent.phase == "exited" else None,
        code=code,
        message=message,
        log_tail=folder.tail(TAIL_LINES),
    )


def _explain(folder: WorkspaceDir, record: StartRecord, agent: AgentState | None) -> tuple[str, str]:
    """Return the code and message of a failure."""
    launched = folder.launched()
    if launched is not None and launched.boot_id != processes.boot_id():
        return "host_restarted", "This machine was restarted. Start the workspace again."
    ended = agent is not None and agent.phase == "exited"
    killed = not ended or (agent is not None and agent.exit_code == SIGKILL_EXIT)
    groups = [Path(path) for path in record.cgroups]
    if killed and (record.oom_kills or cgroups.oom_kills(groups)):
        if record.kept_within_memory or cgroups.kept_within_memory(groups):
            return (
                "machine_out_of_memory",
                "The machine ran out of memory and killed the workspace, which was within its limit of "
                f"{record.memory_mib} MiB. Start the workspace again, or ask an operator for help.",
            )
        return (
            "out_of_memory",
            f"The workspace exceeded its memory limit of {record.memory_mib} MiB and was killed. "
            "Start the workspace again with a larger flavor.",
        )
    if agent is None:
        return (
            "launch_failed",
            "The sandbox could not be set up. Check the workspace's log, then start the workspace again.",
        )
    if not ended:
        return "agent_lost", "The workspace was killed by another program. Start the workspace again."
    code = agent.exit_code
    messages = {
        "port_taken": ("port_taken", "All candidate ports were in use. Start the workspace again."),
        "exec_failed": (
            "exec_failed",
            "The app's program could not be started. Check the app's log, then choose another template.",
        ),
        "start_timeout": (
            "start_timeout",
            "The app did not answer in time. Check the app's log, then start the workspace again.",
        ),
        "secrets_unavailable": (
            "secrets_unavailable",
            "The portal did not deliver the workspace's secrets. Start the workspace again.",
        ),
        "secrets_refused": (
            "secrets_refused",
            "The workspace's secrets are not available: one is unreadable, or together they are too large. "
            "Save their values again or select fewer, then start the workspace again.",
        ),
        "secrets_need_sandbox": (
            "secrets_need_sandbox",
            "Secrets as files need a sandbox, which this node does not have. "
            "Use an environment variable instead, or ask an operator to set up the sandbox.",
        ),
        "revoked": (
            "revoked",
            "The portal revoked the workspace's permission to run. Start the workspace again.",
        ),
        "stopped": ("app_exited", "The workspace was killed by another program. Start the workspace again."),
    }
    if agent.reason in messages:
        return messages[agent.reason]
    if code == 0:
        return "app_exited", "The app was shut down from within the workspace. Start the workspace again."
    return (
        "app_exited",
        f"The app ended with exit code {code}. Check its log, then start the workspace again.",
    )


def _observe_unrecorded(folder: WorkspaceDir, ref: WorkspaceRef, instance: str) -> Observation:
    owned = processes.scan(instance, folder.name, spares=folder.claimed())
    if owned or folder.alive():
        generation = max((process.generation for process in owned), default=ref.generation)
        return Observation(
            WorkspaceRef(ref.workspace_id, generation),
            ObservedState.UNKNOWN,
            code="unrecorded",
            message="Processes of this workspace run without a record. Delete the workspace.",
        )
    return Observation(ref, ObservedState.ABSENT)


def _wait_until(condition: Callable[[], bool]) -> bool:
    """Return whether `condition` holds within 0.25 s."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
