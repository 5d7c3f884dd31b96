"""Any order of calls: no device is granted twice, and nothing is left after a deletion."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from provisioning.drivers.simulated.driver import SimulatedDriver
from provisioning.errors import BackendUnavailable, ProvisioningError, StaleCommand
from provisioning.types import (
    AcceleratorRequest,
    AgentSpec,
    AppSpec,
    DeviceGrant,
    NodePlacement,
    ObservedState,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)
from tests.suite.choice import examples

IDS = [str(uuid.UUID(int=number, version=4)) for number in range(4)]
LIVE = {ObservedState.STARTING, ObservedState.RUNNING, ObservedState.STOPPING, ObservedState.FAILED}
which = st.sampled_from(IDS)
generations = st.integers(1, 4)


class Calls(RuleBasedStateMachine):
    """Early, late, duplicate and lost calls in any order, compared with a model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="berth-simulated-"))
        self.now = 1_800_000_000.0
        self.granted: dict[str, dict[str, int]] = {}
        self.closed: dict[str, int] = {}
        self.driver = self.make()
        self.nodes = self.driver.inventory().nodes

    def make(self, **script: object) -> SimulatedDriver:
        config = {"state": str(self.folder), "nodes": 2, "gpus": 2, "cpu_milli": 3000}
        config |= {"start_delay_s": 2, "stop_delay_s": 3, "crash_after_s": 9, **script}
        return SimulatedDriver(PoolConfig("trial", "simulated", config), clock=lambda: self.now)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(
        workspace=which,
        generation=generations,
        node=st.integers(0, 1),
        first=st.integers(0, 1),
        count=st.integers(0, 2),
        share=st.sampled_from([1000, 500, 400]),
        lost=st.booleans(),
    )
    def start(self, workspace, generation, node, first, count, share, lost):
        devices = self.nodes[node].devices[first : first + count]
        spec = WorkspaceSpec(
            ref=WorkspaceRef(workspace, generation),
            name="w",
            owner="ada",
            team="analysts",
            template="jupyterlab",
            app=AppSpec(("jupyter-lab",)),
            resources=ResourceRequest(1000, 1024, accelerators=AcceleratorRequest(count, "", share)),
            agent=AgentSpec("http://127.0.0.1:9", "agent"),
            app_token="app",
        )
        grants = {device.uuid: share for device in devices}
        placement = Placement(
            (NodePlacement(self.nodes[node].name, tuple(DeviceGrant(u, m) for u, m in grants.items())),)
        )
        before = self.driver.starts(spec.ref)
        try:
            self.make(lose_replies=lost).ensure_started(spec, placement)
        except BackendUnavailable:
            assert lost
        except ProvisioningError:
            assert self.driver.starts(spec.ref) == before
        if self.driver.starts(spec.ref) > before:
            assert generation > self.closed.get(workspace, -1), "a closed generation was started"
            self.granted[workspace] = grants

    @rule(workspace=which, generation=generations, delete=st.booleans(), lost=st.booleans())
    def end(self, workspace, generation, delete, lost):
        ref = WorkspaceRef(workspace, generation)
        before = self.driver.observe(ref)
        driver = self.make(lose_replies=lost)
        newer = before.state is not ObservedState.ABSENT and before.ref.generation > generation
        try:
            (driver.ensure_deleted if delete else driver.ensure_stopped)(ref)
        except BackendUnavailable:
            assert lost
        except StaleCommand:
            assert newer
        if newer:
            assert self.driver.observe(ref) == before
        else:
            self.closed[workspace] = max(generation, self.closed.get(workspace, -1))
            assert self.driver.observe(ref).state not in (ObservedState.STARTING, ObservedState.RUNNING)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds):
        self.now += seconds

    @rule(workspace=which)
    def delete_for_good(self, workspace):
        ref = WorkspaceRef(workspace, 100)
        self.driver.ensure_deleted(ref)
        self.now += 3
        assert self.driver.ensure_deleted(ref).state is ObservedState.ABSENT
        # The call for another workspace removes ended ones.
        self.driver.ensure_deleted(WorkspaceRef(str(uuid.UUID(int=99, version=4)), 1))
        with closing(sqlite3.connect(self.folder / "state.sqlite3")) as connection:
            for table in ("workspaces", "parts", "grants"):
                query = f"SELECT count(*) FROM {table} WHERE name = ?"
                assert connection.execute(query, (ref.external_name,)).fetchone() == (0,)
            # Start again under the same name, as after closed generations have expired.
            connection.execute("DELETE FROM marks WHERE name = ?", (ref.external_name,))
            connection.commit()
        self.closed.pop(workspace, None)
        self.granted.pop(workspace, None)

    @invariant()
    def no_device_is_granted_twice(self):
        held: dict[str, int] = {}
        for seen in self.driver.list_owned():
            if seen.state in LIVE:
                for device, milli in self.granted[seen.ref.workspace_id].items():
                    held[device] = held.get(device, 0) + milli
        assert all(milli <= 1000 for milli in held.values()), held
        assert self.driver.usage() == held

    @invariant()
    def list_equals_observations(self):
        listed = {seen.ref.workspace_id: seen for seen in self.driver.list_owned()}
        for workspace in IDS:
            seen = self.driver.observe(WorkspaceRef(workspace, 1))
            assert listed.get(workspace, replace(seen, state=ObservedState.ABSENT)) == seen


Calls.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestCalls = Calls.TestCase
