"""The simulated driver beyond the contract: scripted time, failures and checked capacity."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from provisioning.errors import (
    BackendUnavailable,
    Conflict,
    InvalidSpec,
    NoCapacity,
    StaleCommand,
    StartFailed,
)
from provisioning.types import (
    DeviceGrant,
    NodePlacement,
    ObservedState,
    Placement,
    WorkspaceRef,
)

ABSENT, FAILED = ObservedState.ABSENT, ObservedState.FAILED
RUNNING, STARTING = ObservedState.RUNNING, ObservedState.STARTING
STOPPED, STOPPING = ObservedState.STOPPED, ObservedState.STOPPING


# Hardware


def test_a_hundred_nodes_of_eight_are_counted_quickly(pool):
    driver = pool(nodes=100, gpus=8)
    driver.inventory()
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        inventory = driver.inventory()
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.05
    assert [node.name for node in inventory.nodes[:2]] == ["sim-001", "sim-002"]
    devices = [device for node in inventory.nodes for device in node.devices]
    assert len({device.uuid for device in devices}) == 800
    assert all(d.uuid.startswith("SIM-GPU-") and d.model == "Simulated H100" for d in devices)


def test_device_uuids_are_equal_in_every_process(pool):
    assert pool().inventory().nodes == pool().inventory().nodes
    assert pool().inventory().nodes[0].devices[0].uuid == "SIM-GPU-c122c46e-c479-5dbc-79bc-1d01eca8e6de"


# Time


def test_workspace_advances_by_time(pool, clock, spec, placed):
    driver, one = pool(start_delay_s=10, stop_delay_s=5), spec()
    assert driver.ensure_started(one, placed(driver, one)).state is STARTING
    clock.pass_(9.9)
    assert driver.observe(one.ref).state is STARTING
    assert not driver.observe(one.ref).ready
    clock.pass_(0.1)
    assert driver.observe(one.ref).state is RUNNING
    assert driver.observe(one.ref).ready
    assert driver.ensure_stopped(one.ref).state is STOPPING
    clock.pass_(4.9)
    assert driver.ensure_stopped(one.ref).state is STOPPING
    clock.pass_(0.1)
    assert driver.observe(one.ref).state is STOPPED
    assert driver.ensure_deleted(one.ref).state is ABSENT


def test_repeated_deletion_does_not_delay_it(pool, clock, spec, placed):
    driver, one = pool(stop_delay_s=5), spec()
    driver.ensure_started(one, placed(driver, one))
    for _ in range(5):
        assert driver.ensure_deleted(one.ref).state is STOPPING
        clock.pass_(1)
    assert driver.ensure_deleted(one.ref).state is ABSENT


def test_changed_script_does_not_affect_started_workspaces(pool, clock, spec, placed):
    driver, one = pool(start_delay_s=10), spec()
    driver.ensure_started(one, placed(driver, one))
    assert pool(start_delay_s=0).observe(one.ref).state is STARTING


def test_closed_generations_are_removed_after_a_week(pool, clock, spec, placed):
    driver, one, other = pool(), spec(), spec()
    driver.ensure_deleted(one.ref)
    clock.pass_(6 * 86_400)
    with pytest.raises(StaleCommand):
        driver.ensure_started(one, placed(driver, one))
    clock.pass_(8 * 86_400)
    driver.ensure_deleted(other.ref)
    assert driver.ensure_started(one, placed(driver, one)).state is RUNNING


def test_stopped_workspace_keeps_its_generation_closed(pool, clock, spec, placed):
    driver, one = pool(), spec()
    driver.ensure_started(one, placed(driver, one))
    driver.ensure_stopped(one.ref)
    clock.pass_(100 * 86_400)
    driver.ensure_deleted(spec().ref)
    with pytest.raises(StaleCommand):
        driver.ensure_started(one, placed(driver, one))


# Failures


def test_scripted_failures_are_by_name_and_leave_nothing(pool, spec, placed):
    driver = pool(fail_starts="unlucky")
    lucky, unlucky = spec(name="lucky", gpus=1), spec(name="unlucky", gpus=1)
    with pytest.raises(StartFailed):
        driver.ensure_started(unlucky, placed(driver, unlucky))
    assert driver.observe(unlucky.ref).state is ABSENT
    assert driver.usage() == {}
    assert driver.ensure_started(lucky, placed(driver, lucky)).state is RUNNING


def test_failure_share_is_drawn_per_attempt(pool, spec, placed):
    driver, one = pool(fail_starts=0.5, seed=4), spec(workspace_id="00000000-0000-4000-8000-000000000001")
    failed = 0
    for _ in range(50):
        try:
            driver.ensure_started(one, placed(driver, one))
            break
        except StartFailed:
            failed += 1
    assert driver.observe(one.ref).state is RUNNING
    assert failed < 50


def test_lost_reply_happens_after_the_work(pool, spec, placed):
    losing, driver, one = pool(lose_replies=True), pool(), spec(gpus=2)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            losing.ensure_started(one, placed(driver, one))
    assert driver.observe(one.ref).state is RUNNING
    assert driver.starts(one.ref) == 1
    with pytest.raises(BackendUnavailable):
        losing.ensure_stopped(one.ref)
    assert driver.observe(one.ref).state is STOPPED
    with pytest.raises(BackendUnavailable):
        losing.ensure_deleted(one.ref)
    assert driver.observe(one.ref).state is ABSENT


def test_crashed_app_is_reported_and_keeps_devices_until_deleted(pool, clock, spec, placed):
    driver, one, two = (
        pool(crash_after_s=60, crash_exit_code=7, crashes="one"),
        spec(name="one", gpus=1),
        spec(),
    )
    driver.ensure_started(one, placed(driver, one))
    driver.ensure_started(two, placed(driver, two))
    assert driver.observe(one.ref).state is RUNNING
    clock.pass_(60)
    seen = driver.observe(one.ref)
    assert (seen.state, seen.code, seen.exit_code, seen.ready) == (FAILED, "app_exited", 7, False)
    assert "Exit code 7." in seen.log_tail
    assert driver.observe(two.ref).state is RUNNING
    assert len(driver.usage()) == 1
    driver.ensure_deleted(one.ref)
    assert driver.usage() == {}


def test_an_app_that_is_never_ready_fails_at_its_start_timeout(pool, clock, spec, placed):
    driver, one = pool(never_ready=True), spec(start_timeout_s=30)
    driver.ensure_started(one, placed(driver, one))
    clock.pass_(29)
    assert driver.observe(one.ref).state is STARTING
    clock.pass_(1)
    seen = driver.observe(one.ref)
    assert (seen.state, seen.code, seen.exit_code) == (FAILED, "start_timeout", None)


def test_scripted_refusals_are_not_counted_as_double_grants(pool, spec, placed):
    driver, one = pool(refuse_capacity=True), spec()
    with pytest.raises(NoCapacity):
        driver.ensure_started(one, placed(driver, one))
    assert driver.over_grants() == ()
    assert driver.observe(one.ref).state is ABSENT


def test_unavailable_backend_raises_instead_of_reporting_absence(pool, spec, placed):
    driver, one = pool(), spec()
    placement = placed(driver, one)
    driver.ensure_started(one, placement)
    unavailable = pool(unavailable=True)
    for call in (
        unavailable.inventory,
        unavailable.list_owned,
        lambda: unavailable.observe(one.ref),
        lambda: unavailable.ensure_started(one, placement),
        lambda: unavailable.ensure_stopped(one.ref),
        lambda: unavailable.ensure_deleted(one.ref),
        lambda: unavailable.logs(one.ref),
    ):
        with pytest.raises(BackendUnavailable):
            call()
    assert driver.observe(one.ref).state is RUNNING


def test_calls_take_as_long_as_scripted(pool, slept, spec):
    driver = pool(call_delay_ms=250)
    driver.inventory()
    driver.observe(spec().ref)
    assert slept == [0.25, 0.25]


# Nodes that vanish


def test_workspaces_on_a_vanished_node_are_unknown_until_it_returns(pool, clock, spec, placed):
    driver = pool(vanish_nodes="sim-002", vanish_after_s=100, vanish_for_s=50)
    here, there = spec(gpus=1), spec(gpus=1)
    driver.ensure_started(here, placed(driver, here, node=0))
    driver.ensure_started(there, placed(driver, there, node=1))
    clock.pass_(99)
    assert [node.online for node in driver.inventory().nodes] == [True, True]
    clock.pass_(1)
    assert [node.online for node in driver.inventory().nodes] == [True, False]
    assert driver.observe(here.ref).state is RUNNING
    seen = driver.observe(there.ref)
    assert (seen.state, seen.code, seen.ready) == (ObservedState.UNKNOWN, "node_offline", False)
    assert "sim-002" in seen.message
    assert driver.ensure_deleted(there.ref).state is ObservedState.UNKNOWN
    with pytest.raises(StaleCommand):
        driver.ensure_started(there, placed(driver, there, node=1))
    assert {o.ref: o.state for o in driver.list_owned()}[here.ref] is RUNNING
    late = spec()
    with pytest.raises(BackendUnavailable):
        driver.ensure_started(late, placed(driver, late, node=1))
    clock.pass_(50)
    assert driver.observe(there.ref).state is RUNNING, "no request reached it while it was away"
    assert driver.ensure_deleted(there.ref).state is ABSENT
    assert driver.ensure_started(late, placed(driver, late, node=1)).state is RUNNING


@pytest.mark.parametrize("op", ["ensure_stopped", "ensure_deleted"])
def test_ending_workspace_on_a_lost_node_is_not_assumed_ended(pool, clock, spec, placed, op):
    driver, one = pool(vanish_nodes="sim-001", vanish_after_s=100, vanish_for_s=50, stop_delay_s=10), spec()
    driver.ensure_started(one, placed(driver, one))
    clock.pass_(95)
    assert getattr(driver, op)(one.ref).state is STOPPING
    clock.pass_(25)
    driver.ensure_deleted(spec().ref)
    assert driver.observe(one.ref).state is ObservedState.UNKNOWN
    assert [seen.state for seen in driver.list_owned()] == [ObservedState.UNKNOWN]
    with pytest.raises((StaleCommand, BackendUnavailable)):
        driver.ensure_started(one, placed(driver, one, node=1))
    clock.pass_(30)
    assert getattr(driver, op)(one.ref).state is (STOPPED if op == "ensure_stopped" else ABSENT)


# Capacity


def test_device_is_not_granted_twice_and_the_attempt_is_recorded(pool, spec, placed):
    driver, one, two = pool(), spec(gpus=2), spec(gpus=2)
    driver.ensure_started(one, placed(driver, one, first=0))
    with pytest.raises(NoCapacity) as caught:
        driver.ensure_started(two, placed(driver, two, first=1))
    assert "sim-001" in caught.value.message
    (kept,) = driver.over_grants()
    assert two.ref.external_name in kept and "2000 of 1000" in kept
    assert driver.observe(two.ref).state is ABSENT
    assert driver.ensure_started(two, placed(driver, two, first=2)).state is RUNNING
    assert sorted(driver.usage().values()) == [1000] * 4


def test_shares_of_a_device_are_summed(pool, spec, placed):
    driver = pool()
    for _ in range(4):
        part = spec(gpus=1, share_milli=250)
        driver.ensure_started(part, placed(driver, part))
    one_more = spec(gpus=1, share_milli=1)
    with pytest.raises(NoCapacity):
        driver.ensure_started(one_more, placed(driver, one_more))
    assert list(driver.usage().values()) == [1000]


def test_cpu_of_a_node_is_not_granted_twice(pool, spec, placed):
    driver, one, two = pool(cpu_milli=1500), spec(cpu_milli=1000), spec(cpu_milli=501)
    driver.ensure_started(one, placed(driver, one))
    with pytest.raises(NoCapacity):
        driver.ensure_started(two, placed(driver, two))
    assert driver.ensure_started(two, placed(driver, two, node=1)).state is RUNNING


def test_devices_are_allocated_until_the_end_is_observed(pool, clock, spec, placed):
    driver, one, two = pool(stop_delay_s=5), spec(gpus=4), spec(gpus=4)
    driver.ensure_started(one, placed(driver, one))
    driver.ensure_stopped(one.ref)
    with pytest.raises(NoCapacity):
        driver.ensure_started(two, placed(driver, two))
    clock.pass_(5)
    assert driver.ensure_started(two, placed(driver, two)).state is RUNNING


def test_multi_node_workspace_is_one_workspace(pool, spec, placed):
    driver, wide = pool(), spec(nodes=2, gpus=4)
    assert driver.ensure_started(wide, placed(driver, wide)).state is RUNNING
    assert len(driver.usage()) == 8
    assert len(driver.list_owned()) == 1
    driver.ensure_deleted(wide.ref)
    assert driver.usage() == {}


@pytest.mark.parametrize("fault", ["foreign device", "too few", "twice the same", "two nodes", "other share"])
def test_placement_not_matching_the_specification_is_refused(pool, spec, fault):
    driver, one = pool(), spec(gpus=2)
    here, there = driver.inventory().nodes
    first, second = (DeviceGrant(device.uuid) for device in here.devices[:2])
    placement = {
        "foreign device": Placement((NodePlacement(here.name, (first, DeviceGrant(there.devices[0].uuid))),)),
        "too few": Placement((NodePlacement(here.name, (first,)),)),
        "twice the same": Placement((NodePlacement(here.name, (first, first)),)),
        "two nodes": Placement((NodePlacement(here.name, (first,)), NodePlacement(there.name, (second,)))),
        "other share": Placement((NodePlacement(here.name, (first, DeviceGrant(second.uuid, 500))),)),
    }[fault]
    with pytest.raises(StartFailed):
        driver.ensure_started(one, placement)
    assert driver.observe(one.ref).state is ABSENT
    assert driver.usage() == {}


@pytest.mark.parametrize(
    "changes",
    [{"gpus": 5}, {"nodes": 3}, {"cpu_milli": 10**6}, {"cpu_milli": 0}, {"gpus": 1, "share_milli": 0}],
)
def test_amount_above_every_node_is_invalid(pool, spec, changes):
    with pytest.raises(InvalidSpec):
        pool().validate(spec(**changes))


def test_workspace_id_must_be_a_uuid(pool, spec):
    with pytest.raises(InvalidSpec):
        pool().validate(spec(workspace_id="../../etc"))


def test_next_generation_waits_for_the_previous_to_end(pool, clock, spec, placed):
    driver, one = pool(stop_delay_s=5), spec(gpus=1)
    two = spec(gpus=1, generation=2, workspace_id=one.ref.workspace_id)
    driver.ensure_started(one, placed(driver, one))
    with pytest.raises(Conflict):
        driver.ensure_started(two, placed(driver, two))
    driver.ensure_stopped(one.ref)
    with pytest.raises(StartFailed) as caught:
        driver.ensure_started(two, placed(driver, two))
    assert caught.value.retryable
    clock.pass_(5)
    assert driver.ensure_started(two, placed(driver, two)).ref == two.ref
    assert driver.starts(two.ref) == 2


# State


def test_pools_have_separate_states(pool, tmp_path, spec, placed):
    driver, other, one = pool(), pool(state=str(tmp_path / "other")), spec()
    driver.ensure_started(one, placed(driver, one))
    assert other.list_owned() == ()


def test_locked_state_is_busy_and_damaged_state_is_reported(pool, tmp_path, monkeypatch):
    monkeypatch.setattr("provisioning.simulation.store.BUSY_TIMEOUT_S", 0.01)
    driver, ref = pool(), WorkspaceRef("00000000-0000-4000-8000-000000000001", 1)
    driver.inventory()
    path = tmp_path / "state" / "state.sqlite3"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailable, match="busy"):
        driver.ensure_stopped(ref)
    assert driver.observe(ref).state is ABSENT, "reading goes on while another process writes"
    holder.close()
    for file in path.parent.glob("state.sqlite3*"):
        file.write_bytes(b"no database at all" * 100)
    with pytest.raises(BackendUnavailable, match=str(tmp_path)):
        driver.observe(ref)


def test_state_of_another_version_is_refused_unchanged(pool, tmp_path):
    driver = pool()
    driver.inventory()
    connection = sqlite3.connect(tmp_path / "state" / "state.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(BackendUnavailable, match="version"):
        driver.inventory()


def test_interrupted_creation_is_completed(pool, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.sqlite3").touch()
    assert pool().list_owned() == ()


def test_concurrent_calls_all_succeed(pool, spec, placed):
    driver = pool(cpu_milli=10**6)
    specs = [spec() for _ in range(80)]
    placement = placed(driver, specs[0])
    with ThreadPoolExecutor(4) as threads:
        seen = list(threads.map(lambda one: driver.ensure_started(one, placement), specs))
    assert {observation.state for observation in seen} == {RUNNING}
    assert len(driver.list_owned()) == 80
