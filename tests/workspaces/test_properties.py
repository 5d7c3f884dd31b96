"""Random histories with users, sweeps, agents, and lost, duplicate, late and reordered messages.

`check_invariants` holds after every step; once the backend works and messages arrive, every workspace reaches
its desired state.
"""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import time_machine
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from portal.common.errors import PortalError
from portal.fleet.inventory.node_commands import config_of
from portal.workspaces import housekeeping, reconcile, results, services
from portal.workspaces.lifecycle import TRANSITIONAL, DesiredState, State
from portal.workspaces.models import Workspace
from provisioning.registry import driver_for
from provisioning.types import ObservedState, WorkspaceRef
from tests.broker import Broker
from tests.factories import create_workspace, rescript, simulated_pool
from tests.rows import error_message
from tests.suite.choice import examples
from tests.sweeps import sweep
from tests.workspaces.helpers import check_invariants, failed, seen

START = dt.datetime(2026, 11, 21, 9, 0, tzinfo=dt.UTC)
FLAVORS = ("sim-h100-x1", "sim-h100-x2", "sim-cpu")
ROWS = st.integers(0, 3)
SCRIPTS = st.sampled_from(
    [
        {},
        {"start_delay_s": 3, "stop_delay_s": 2},
        {"lose_replies": 0.5},
        {"fail_starts": 0.5, "refuse_capacity": 0.3},
        {"refuse_capacity": 1.0},
        {"crash_after_s": 4},
        {"never_ready": 0.5},
        {"unavailable": True},
        {"vanish_nodes": "sim-001"},
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(FLAVORS)),
    st.tuples(st.sampled_from(["start", "stop", "delete"]), ROWS),
    st.tuples(st.just("deliver"), st.integers(0, 9)),
    st.tuples(st.just("deliver"), st.integers(0, 9)),
    st.tuples(st.just("deliver all"), st.none()),
    st.tuples(st.just("double"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 2, 8, 21, 130])),
    st.tuples(st.just("sweep"), st.none()),
    st.tuples(st.just("orphans"), st.none()),
    st.tuples(st.just("script"), SCRIPTS),
    st.tuples(st.sampled_from(["ready", "heartbeat", "exited"]), st.tuples(ROWS, st.integers(-1, 0))),
)
LIES = st.tuples(
    st.just("lie"),
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([*ObservedState, "no_capacity", "invalid_spec", "stale", "backend_unavailable"]),
    ),
)
HEALTHY = dict.fromkeys(
    ("lose_replies", "fail_starts", "refuse_capacity", "crash_after_s", "never_ready", "vanish_nodes")
) | {"start_delay_s": 0, "stop_delay_s": 0, "unavailable": False}


class World:
    """A portal with a simulated pool of one node and two devices, and users who act."""

    def __init__(self, folder: Path, clock: time_machine.Traveller, sent: Broker, alice, team) -> None:
        self.clock, self.sent, self.alice, self.team = clock, sent, alice, team
        self.pool = simulated_pool(str(folder), slug="sim", nodes=1, gpus=2, cpu_milli=64_000)
        self.names = (f"w{n}" for n in itertools.count())
        self.generations: dict[uuid.UUID, int] = {}

    @property
    def rows(self) -> list[Workspace]:
        return list(Workspace.objects.order_by("name"))

    def step(self, what: str, how) -> None:
        # Refusals are allowed, but must change nothing.
        with suppress(PortalError, results.Revoked):
            self._do(what, how)
        self.check()

    def _do(self, what: str, how) -> None:
        from portal.catalog import selectors as catalog

        match what:
            case "create":
                if len(self.rows) < 4:
                    create_workspace(
                        actor=self.alice,
                        team=self.team,
                        template=catalog.all_templates().get(slug="jupyterlab"),
                        flavor=catalog.all_flavors().get(slug=how),
                        name=next(self.names),
                    )
            case "start" | "stop" | "delete":
                if how < len(self.rows):
                    getattr(services, what)(actor=self.alice, workspace_id=self.rows[how].pk)
            case "deliver" | "double" | "lose":
                if how < len(self.sent):
                    message = self.sent.messages[how]
                    if what != "double":
                        self.sent.messages.remove(message)
                    if what != "lose":
                        self.sent.deliver(message)
            case "deliver all":
                self.sent.run()
            case "wait":
                self.clock.shift(how)
            case "sweep":
                sweep()
            case "orphans":
                housekeeping.ask_for_owned()
            case "script":
                rescript(self.pool, **{**HEALTHY, **how})
            case "lie":
                index, claim = how
                commands = self.sent.of("node.execute")
                if index < len(commands):
                    command = commands[index].command
                    made = seen(command, claim) if claim in list(ObservedState) else failed(command, claim)
                    results.apply_result(made)
            case "ready" | "heartbeat" | "exited":
                index, back = how
                if index < len(self.rows):
                    self._report(what, self.rows[index], back)

    def _report(self, what: str, row: Workspace, back: int) -> None:
        where = {"workspace_id": row.pk, "generation": row.generation + back}
        if what == "ready":
            results.agent_ready(**where, endpoint="http://127.0.0.1:18001")
        elif what == "heartbeat":
            results.agent_heartbeat(**where, activity={})
        else:
            results.agent_exited(**where, exit_code=1, log_tail="bye")

    def check(self) -> None:
        check_invariants()
        for row in self.rows:
            assert row.generation >= self.generations.get(row.pk, 0)
            self.generations[row.pk] = row.generation
            # Waiting workspaces are left to the queue, which checks them all.
            if row.state in TRANSITIONAL - {State.PENDING} or row.state == State.RUNNING:
                assert row.next_reconcile_at is not None, f"{row.state} is never looked at again"

    def heal(self) -> None:
        """From now on everything works, and enough time passes."""
        rescript(self.pool, **HEALTHY)
        calm, before = 0, {}
        for second in range(400):
            self.sent.run()
            sweep()
            if second % 20 == 0:
                self.sent.run()
                housekeeping.ask_for_owned()
            self.sent.run()
            states = {row.pk: (row.state, row.generation) for row in self.rows}
            moving = any(state in TRANSITIONAL - {State.PENDING} for state, _ in states.values())
            calm = 0 if moving or states != before else calm + 1
            before = states
            # Long enough for waiting workspaces to get the released capacity, and for an observation of
            # running ones, which detects ended apps.
            looked = reconcile.heartbeat_patience().total_seconds()
            if second > 60 and calm > looked + 2 * reconcile.REFUSED_WAIT_S:
                break
            self.clock.shift(1)
        self.check()


@pytest.fixture
def worlds(db, alice, team, catalog, sent, tmp_path, monkeypatch):
    """Create a new world for each example and roll back its database changes."""
    numbers = itertools.count()
    names: Iterator[int] = itertools.count(1)
    # The simulation draws by workspace id, so examples must use the same ids.
    monkeypatch.setattr(Workspace._meta.get_field("id"), "_get_default", lambda: uuid.UUID(int=next(names)))

    def run(steps, then) -> None:
        nonlocal names
        names = itertools.count(1)
        folder = tmp_path / str(next(numbers))
        around = transaction.atomic()
        # Commit hooks run in the transaction of the test.
        around._from_testcase = True
        with time_machine.travel(START, tick=False) as clock, around:
            sent.clear()
            world = World(folder, clock, sent, alice, team)
            for what, how in steps:
                world.step(what, how)
            world.heal()
            then(world)
            transaction.set_rollback(True)
        shutil.rmtree(folder, ignore_errors=True)

    return run


relaxed = settings(
    max_examples=examples(40, quick=2),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def desired_states_are_reached(world: World) -> None:
    driver = driver_for(config_of(world.pool))
    assert driver.over_grants() == ()
    expected = {
        DesiredState.RUNNING: {State.RUNNING, State.PENDING, State.FAILED},
        DesiredState.STOPPED: {State.STOPPED},
        DesiredState.DELETED: {State.TERMINATED},
    }
    for row in world.rows:
        assert row.state in expected[row.desired_state], (row.state, row.desired_state, error_message(row))
        if row.state == State.FAILED:
            assert error_message(row)
    running = {row.external_name for row in world.rows if row.state == State.RUNNING}
    alive = {item.ref.external_name for item in driver.list_owned() if item.state is ObservedState.RUNNING}
    assert alive == running
    # A waiting workspace waits because of another one.
    if any(row.state == State.PENDING for row in world.rows):
        assert running


@pytest.mark.slow("whole histories of workspaces for each example")
@relaxed
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
@example(
    steps=[
        ("script", {"refuse_capacity": 1.0}),
        ("create", "sim-h100-x2"),
        ("double", 0),
        ("deliver", 1),
        ("deliver", 1),
        ("deliver", 1),
        # The capacity has been released, and the start arrives a second time.
        ("script", {}),
        ("deliver", 0),
        ("create", "sim-h100-x2"),
        ("deliver", 0),
    ]
)
@example(
    # An app that ends while nothing else happens.
    steps=[
        ("script", {"crash_after_s": 4}),
        ("create", "sim-h100-x2"),
        ("create", "sim-h100-x1"),
        ("sweep", None),
        ("script", {"lose_replies": 0.5}),
        ("deliver all", None),
    ]
)
def test_invariants_hold_and_all_workspaces_converge(worlds, steps):
    worlds(steps, desired_states_are_reached)


@pytest.mark.slow("whole histories for each example")
@relaxed
@given(steps=st.lists(st.one_of(STEPS, LIES, LIES), min_size=5, max_size=40))
def test_invariants_hold_with_a_lying_backend(worlds, steps):
    worlds(steps, lambda world: None)


def test_reference_of_another_generation_never_changes_a_row(worlds):
    """The rule on which the other invariants depend."""

    def then(world: World) -> None:
        for row in world.rows:
            with pytest.raises(results.Revoked):
                results.agent_heartbeat(workspace_id=row.pk, generation=row.generation + 1, activity={})
            assert WorkspaceRef(str(row.pk), row.generation).external_name == row.external_name

    worlds([("create", "sim-cpu"), ("deliver all", None)], then)
