"""Hand-made results of the node plane, and invariants that always hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.workspaces import results
from portal.workspaces.lifecycle import HOLDING, State
from portal.workspaces.models import Workspace
from provisioning.endpoints import socket_endpoint
from provisioning.types import (
    Command,
    Failure,
    Observation,
    ObservedState,
    Op,
    Result,
    WorkspaceRef,
)
from tests.broker import Broker

NEVER_PLACED = frozenset({State.PENDING, State.STOPPED, State.TERMINATED, State.FAILED})


def seen(
    command: Command, state: ObservedState | str, *, generation: int | None = None, **fields: Any
) -> Result:
    """Return the result of `command` with an observation."""
    ref = WorkspaceRef(command.ref.workspace_id, command.ref.generation if generation is None else generation)
    return Result(
        op=command.op,
        ref=command.ref,
        lease=command.lease,
        observation=Observation(ref=ref, state=ObservedState(state), **fields),
    )


def failed(
    command: Command, code: str, *, retryable: bool = True, message: str = "It did not work."
) -> Result:
    """Return the result of `command` with a failure."""
    return Result(
        op=command.op,
        ref=command.ref,
        lease=command.lease,
        failure=Failure(code=code, message=message, retryable=retryable, blame="backend"),
    )


def taken(sent: Broker, op: Op | str) -> Command:
    """Take the only pending command and assert that it is `op`."""
    commands = [message.command for message in sent.take("node.execute")]
    assert [command.op for command in commands] == [Op(op)]
    return commands[0]


def answer(sent: Broker, op: Op | str, state: ObservedState | str, **fields: Any) -> bool:
    """Answer the only pending command with an observation. Returns whether it was applied."""
    return results.apply_result(seen(taken(sent, op), state, **fields))


def endpoint_of(workspace: Workspace) -> str:
    """Return the address of this start under the local driver."""
    return socket_endpoint(WorkspaceRef(str(workspace.pk), workspace.generation))


def run_until_ready(sent: Broker, workspace: Workspace, endpoint: str = "http://127.0.0.1:18001") -> None:
    """Take a workspace from PROVISIONING to RUNNING."""
    assert answer(sent, "start", "running", ready=True, endpoint=endpoint)
    workspace.refresh_from_db()
    assert workspace.state == State.RUNNING


def active(workspace: Workspace) -> list[Allocation]:
    return list(workspace.allocations.filter(released_at=None))


def check_invariants() -> None:
    """Assert invariants that hold outside transactions."""
    for workspace in Workspace.objects.all():
        held = active(workspace)
        nodes = workspace.resources["nodes"]
        if workspace.state in NEVER_PLACED:
            assert not held, f"{workspace.state} holds {held}"
        elif workspace.state != State.TERMINATING:
            assert len(held) == nodes, f"{workspace.state} holds {held}"
            assert len({allocation.node_id for allocation in held}) == nodes
        else:
            # A workspace deleted after a stop has no allocation.
            assert len(held) in {0, nodes}
        assert {allocation.generation for allocation in held} <= {workspace.generation}
        assert (workspace.pool is not None) or workspace.state not in HOLDING
    holders = Counter(AllocatedDevice.objects.filter(active=True).values_list("device", "milli"))
    per_device: Counter[Any] = Counter()
    for (device, milli), count in holders.items():
        per_device[device] += milli * count
    assert all(total <= 1000 for total in per_device.values()), per_device
    mirrored = AllocatedDevice.objects.filter(active=True).exclude(allocation__released_at=None)
    assert not mirrored.exists()
    for allocation in Allocation.objects.filter(released_at=None).select_related("node"):
        used = Allocation.objects.filter(node=allocation.node, released_at=None)
        assert sum(item.cpu_milli for item in used) <= allocation.node.cpu_milli
        assert sum(item.memory_mib for item in used) <= allocation.node.memory_mib
