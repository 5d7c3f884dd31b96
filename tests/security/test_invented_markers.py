"""Attack: forged markers of Berth processes, for missing workspaces or those of a neighbour."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.drivers.local.isolation import probe
from provisioning.types import Observation, ObservedState
from tests.provisioning.local.local_support import Pool, ask

INVENTED = 60


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    if not probe().bwrap:
        pytest.skip("plain processes are known by nothing but their variables")
    made = Pool(tmp_path)
    yield made
    made.close()


def invent(pool: Pool, seen: Observation, names: list[str], role: str = "agent") -> None:
    """Let the workspace start a process with each of these names as a driver marker."""
    environs = [
        {
            "PATH": "/usr/bin:/bin",
            "BERTH_INSTANCE": pool.driver.instance,
            "BERTH_WORKSPACE": name,
            "BERTH_GENERATION": "1",
            "BERTH_ROLE": role,
        }
        for name in names
    ]
    start = "__import__('subprocess').Popen(['sleep', '600'], env=environ, start_new_session=True)"
    assert ask(seen, f"len([{start} for environ in {environs!r}])") == len(names)


def test_forged_markers_do_not_create_orphans(pool):
    attacker = pool.spec()
    seen = pool.run(attacker)
    invent(pool, seen, [f"ws-{uuid.uuid4().hex}" for _ in range(INVENTED)])
    owned = pool.driver.list_owned()
    # The portal sends commands about listed workspaces: only the attacker's own.
    assert [each.ref for each in owned] == [attacker.ref]
    pool.wait(lambda: pool.driver.ensure_stopped(attacker.ref), ObservedState.STOPPED)
    assert pool.pids(attacker.ref) == []


@pytest.mark.parametrize("role", ["agent", "app"])
def test_workspace_with_equal_name_stops_in_time(pool, role):
    attacker, neighbour = pool.spec(), pool.spec(owner="bob")
    seen = pool.run(attacker)
    pool.run(neighbour)
    invent(pool, seen, [neighbour.ref.external_name] * 5, role)
    pool.wait(lambda: pool.driver.ensure_stopped(neighbour.ref), ObservedState.STOPPED)
    # The process with its name belongs to the attacker and is not ended in its place.
    assert ask(seen, "1 + 1") == 2
    assert pool.driver.observe(attacker.ref).state is ObservedState.RUNNING
    assert [each.ref for each in pool.driver.list_owned() if each.state is ObservedState.RUNNING] == [
        attacker.ref
    ]
    pool.wait(lambda: pool.driver.ensure_stopped(attacker.ref), ObservedState.STOPPED)


def test_absent_neighbour_can_start_despite_forged_markers(pool):
    attacker, neighbour = pool.spec(), pool.spec(owner="bob")
    invent(pool, pool.run(attacker), [neighbour.ref.external_name] * 5)
    assert pool.driver.observe(neighbour.ref).state is ObservedState.ABSENT
    assert ask(pool.run(neighbour), "1 + 1") == 2
    pool.wait(lambda: pool.driver.ensure_stopped(attacker.ref), ObservedState.STOPPED)
