"""A simulated pool with a controllable clock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.drivers.simulated.driver import SimulatedDriver
from provisioning.types import (
    AcceleratorRequest,
    AgentSpec,
    AppSpec,
    DeviceGrant,
    JsonScalar,
    NodePlacement,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)

START = 1_800_000_000.0


class Clock:
    """Seconds that advance only on request."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def make_spec(
    *,
    gpus: int = 0,
    share_milli: int = 1000,
    nodes: int = 1,
    cpu_milli: int = 1000,
    name: str = "",
    generation: int = 1,
    workspace_id: str = "",
    start_timeout_s: int = 120,
) -> WorkspaceSpec:
    workspace_id = workspace_id or str(uuid.uuid4())
    return WorkspaceSpec(
        ref=WorkspaceRef(workspace_id, generation),
        name=name or f"w-{workspace_id[:8]}",
        owner="ada",
        team="analysts",
        template="jupyterlab",
        app=AppSpec(("jupyter-lab",), start_timeout_s=start_timeout_s),
        resources=ResourceRequest(
            cpu_milli=cpu_milli,
            memory_mib=1024,
            nodes=nodes,
            accelerators=AcceleratorRequest(count=gpus, share_milli=share_milli),
        ),
        agent=AgentSpec("http://127.0.0.1:9", "agent-token"),
        app_token="app-token",
    )


def place(driver: SimulatedDriver, spec: WorkspaceSpec, *, first: int = 0, node: int = 0) -> Placement:
    """Place the spec on devices from number `first` of nodes from number `node` on."""
    want = spec.resources
    return Placement(
        tuple(
            NodePlacement(
                info.name,
                tuple(
                    DeviceGrant(device.uuid, want.accelerators.share_milli)
                    for device in info.devices[first : first + want.accelerators.count]
                ),
            )
            for info in driver.inventory().nodes[node : node + want.nodes]
        )
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def pool(tmp_path: Path, clock: Clock, slept: list[float]) -> Callable[..., SimulatedDriver]:
    """Create a driver of the same pool with a new script."""

    def make(**config: JsonScalar) -> SimulatedDriver:
        settings = {"state": str(tmp_path / "state"), "nodes": 2, "gpus": 4} | config
        return SimulatedDriver(PoolConfig("trial", "simulated", settings), clock=clock, sleep=slept.append)

    return make


@pytest.fixture
def spec() -> Callable[..., WorkspaceSpec]:
    return make_spec


@pytest.fixture
def placed() -> Callable[..., Placement]:
    return place
