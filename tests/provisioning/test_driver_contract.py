"""The contract of `provisioning.driver` for every registered driver.

Driver-specific knowledge is in the harnesses of `conftest.py`. At the end of a test, its harness deletes what
was started and checks that nothing is left, that every call returned promptly, and that no secret was in an
answer or error.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest

from provisioning import messages, registry
from provisioning.driver import Driver
from provisioning.errors import Blame, Conflict, InvalidSpec, ProvisioningError, StaleCommand
from provisioning.traits import Traits
from provisioning.types import Inventory, Observation, ObservedState, WorkspaceRef

ABSENT, FAILED = ObservedState.ABSENT, ObservedState.FAILED
RUNNING, STARTING = ObservedState.RUNNING, ObservedState.STARTING
STOPPED, STOPPING = ObservedState.STOPPED, ObservedState.STOPPING


def check_error(error: ProvisioningError) -> None:
    assert error.code and error.code.replace("_", "").isalnum() and error.code.islower()
    assert isinstance(error.blame, Blame)
    assert isinstance(error.retryable, bool)
    assert error.message.rstrip().endswith("."), error.message
    assert len(error.message) > 20, "a message says what is wrong and names one next action"
    assert "Traceback" not in error.message


# Identity of a driver


def test_is_registered_under_its_own_name(harness):
    kind = registry.driver_class(harness.driver_name)
    assert issubclass(kind, Driver)
    assert kind.name == harness.driver_name
    assert isinstance(kind.traits, Traits)


def test_only_simulated_drivers_are_marked_as_simulated(harness):
    assert harness.driver.traits.simulated is harness.driver_name.startswith("simulated")


def test_inventory_names_nodes_and_devices_once_in_integers(harness):
    before = time.time()
    inventory = harness.driver.inventory()
    assert before - 1 <= inventory.observed_at <= time.time() + 1
    assert inventory.nodes
    names = [node.name for node in inventory.nodes]
    assert len(set(names)) == len(names)
    uuids = [device.uuid for node in inventory.nodes for device in node.devices]
    assert len(set(uuids)) == len(uuids) and all(uuids)
    for node in inventory.nodes:
        assert node.cpu_milli > 0 and node.memory_mib > 0 and node.disk_mib >= 0
        for amount in (node.cpu_milli, node.memory_mib, node.disk_mib):
            assert type(amount) is int
        assert all(device.memory_mib > 0 and device.model for device in node.devices)
        if not node.devices:
            assert node.accelerator_note, "a node without accelerators says why"


def test_driver_results_survive_serialization(harness):
    inventory = harness.driver.inventory()
    assert messages.load(messages.dump(inventory), Inventory) == inventory
    spec = harness.spec()
    observation = harness.run(spec)
    assert messages.load(messages.dump(observation), Observation) == observation


# validate


def test_validate_accepts_valid_specifications(harness):
    harness.driver.validate(harness.spec())


@pytest.mark.parametrize("what", ["no command", "too many nodes", "no such model"])
def test_validate_refuses_impossible_specifications_and_blames_the_user(harness, what):
    spec = harness.spec()
    accelerators = replace(spec.resources.accelerators, count=1, model="No Such Model 9000")
    impossible = {
        "no command": replace(spec, app=replace(spec.app, argv=())),
        "too many nodes": replace(spec, resources=replace(spec.resources, nodes=1_000_000)),
        "no such model": replace(spec, resources=replace(spec.resources, accelerators=accelerators)),
    }[what]
    if what == "no such model" and not any(node.devices for node in harness.driver.inventory().nodes):
        # Accelerators of a host are unknown without I/O; placement refuses there.
        impossible = replace(spec, app=replace(spec.app, argv=()))
    with pytest.raises(InvalidSpec) as caught:
        harness.driver.validate(impossible)
    check_error(caught.value)
    assert caught.value.blame is Blame.USER
    assert not caught.value.retryable


# Starting


def test_start_runs_the_app_and_returns_its_endpoint(harness):
    spec = harness.spec()
    first = harness.start(spec)
    assert first.state in (STARTING, RUNNING)
    assert first.ref == spec.ref
    seen = harness.wait(lambda: harness.driver.observe(spec.ref), RUNNING)
    assert seen.ready
    assert seen.ref == spec.ref
    assert seen.spec_digest == spec.digest()
    assert harness.running(spec) == 1
    if harness.driver.traits.simulated:
        assert seen.endpoint == harness.ask(seen) == ""
    else:
        assert harness.ask(seen) == spec.ref.workspace_id


def test_workspace_reports_readiness_and_heartbeats_to_the_portal(harness):
    if harness.driver.traits.simulated:
        pytest.skip("no process runs in a simulated workspace: its driver's observations say it all")
    spec = harness.spec()
    seen = harness.run(spec)
    ready = harness.portal.wait_for("/agent/v1/ready", spec.ref)
    assert ready.token == spec.agent.token
    assert ready.body["generation"] == spec.ref.generation
    assert ready.body["endpoint"] == seen.endpoint
    beat = harness.portal.wait_for("/agent/v1/heartbeat", spec.ref)
    assert beat.token == spec.agent.token
    assert beat.body["activity"]


def test_workspace_runs_and_ends_without_the_portal(harness):
    spec = harness.spec()
    spec = replace(spec, agent=replace(spec.agent, url="http://127.0.0.1:9"))
    assert harness.run(spec).ready
    harness.stop(spec.ref)
    assert harness.running(spec) == 0


def test_starting_twice_starts_one_workspace(harness):
    spec = harness.spec()
    assert harness.start(spec).state in (STARTING, RUNNING)
    assert harness.start(spec).state in (STARTING, RUNNING)
    harness.wait(lambda: harness.driver.observe(spec.ref), RUNNING)
    assert harness.start(spec).state is RUNNING
    assert harness.running(spec) == 1
    assert harness.starts(spec) == 1


def test_new_driver_finds_existing_workspaces(harness):
    spec = harness.spec()
    harness.run(spec)
    fresh = registry.driver_for(harness.pool)
    assert fresh.observe(spec.ref).state is RUNNING
    assert fresh.ensure_started(spec, harness.placement()).state is RUNNING
    assert harness.starts(spec) == 1


def test_equal_specification_with_different_secrets_is_success(harness):
    spec = harness.spec()
    harness.run(spec)
    renewed = replace(spec, app_token="app-other", agent=replace(spec.agent, token="agent-other"))
    assert renewed.digest() == spec.digest()
    assert harness.start(renewed).state is RUNNING
    assert harness.starts(spec) == 1


def test_another_specification_for_an_existing_name_is_a_conflict(harness):
    spec = harness.spec()
    harness.run(spec)
    other = replace(spec, resources=replace(spec.resources, memory_mib=spec.resources.memory_mib + 1))
    with pytest.raises(Conflict) as caught:
        harness.start(other)
    check_error(caught.value)
    seen = harness.driver.observe(spec.ref)
    assert seen.state is RUNNING and seen.spec_digest == spec.digest()
    assert harness.running(spec) == 1


def test_next_generation_does_not_start_while_one_runs(harness):
    spec = harness.spec()
    harness.run(spec)
    following = harness.later(spec)
    with pytest.raises(ProvisioningError) as caught:
        harness.start(following)
    check_error(caught.value)
    assert harness.running(spec) == 1
    assert harness.driver.observe(following.ref).ref == spec.ref


def test_two_workspaces_run_in_parallel(harness):
    one, two = harness.spec(), harness.spec()
    harness.run(one)
    harness.run(two)
    harness.delete(one.ref)
    assert harness.running(one) == 0
    assert harness.driver.observe(two.ref).state is RUNNING
    assert harness.running(two) == 1


def test_failed_start_leaves_nothing_and_names_the_next_action(harness):
    spec = harness.spec()
    placement = harness.placement()
    with pytest.raises(ProvisioningError) as caught:
        harness.broken().ensure_started(spec, placement)
    check_error(caught.value)
    assert harness.running(spec) == 0
    assert harness.driver.observe(spec.ref).state is ABSENT
    assert harness.leftovers(spec) == []
    harness.run(spec)


def test_start_on_a_missing_node_fails_and_leaves_nothing(harness):
    spec = harness.spec()
    (part,) = harness.placement().nodes
    elsewhere = replace(harness.placement(), nodes=(replace(part, node="no-such-node"),))
    with pytest.raises(ProvisioningError) as caught:
        harness.driver.ensure_started(spec, elsewhere)
    check_error(caught.value)
    assert harness.running(spec) == 0
    assert harness.leftovers(spec) == []


# Misbehaving apps


def test_late_app_is_ready_once_it_answers(harness):
    spec = harness.spec("slow")
    begun = time.monotonic()
    first = harness.start(spec)
    assert first.state is STARTING and not first.ready
    early = harness.driver.observe(spec.ref)
    if time.monotonic() - begun < 0.9:
        assert early.state is STARTING and not early.ready
    seen = harness.wait(lambda: harness.driver.observe(spec.ref), RUNNING)
    assert seen.ready
    assert time.monotonic() - begun >= 0.9


def test_app_without_answer_fails_at_its_timeout_and_can_be_deleted(harness):
    spec = harness.spec("never")
    harness.start(spec)
    seen = harness.wait(lambda: harness.driver.observe(spec.ref), FAILED)
    assert not any(o.ready for o in harness.observations)
    assert seen.code and seen.message.rstrip().endswith(".")
    harness.delete(spec.ref)
    assert harness.running(spec) == 0


def test_starting_app_without_answer_can_be_deleted(harness):
    spec = harness.spec("never")
    harness.start(spec)
    harness.delete(spec.ref)
    assert harness.running(spec) == 0


def test_an_app_that_exits_is_reported_with_its_code_and_last_lines(harness):
    spec = harness.spec("bad")
    harness.start(spec)
    seen = harness.wait(lambda: harness.driver.observe(spec.ref), FAILED)
    assert seen.exit_code == 3
    assert seen.code and seen.message.rstrip().endswith(".")
    assert seen.log_tail.strip()
    assert harness.running(spec) == 0


def test_a_late_duplicate_of_a_start_does_not_revive_an_app_that_exited(harness):
    spec = harness.spec("bad")
    harness.start(spec)
    harness.wait(lambda: harness.driver.observe(spec.ref), FAILED)
    try:
        again = harness.start(spec)
    except ProvisioningError as error:
        check_error(error)
    else:
        assert again.state is FAILED
    assert harness.starts(spec) == 1


def test_a_failed_workspace_can_be_stopped_and_started_again(harness):
    spec = harness.spec("bad")
    harness.start(spec)
    harness.wait(lambda: harness.driver.observe(spec.ref), FAILED)
    harness.stop(spec.ref)
    following = harness.later(spec)
    harness.start(following)
    seen = harness.wait(lambda: harness.driver.observe(following.ref), FAILED)
    assert seen.ref == following.ref
    assert harness.starts(spec) == 2


def test_app_ignoring_the_stop_request_is_killed(harness):
    spec = harness.spec("stubborn")
    harness.run(spec)
    assert harness.driver.ensure_stopped(spec.ref).state is STOPPING
    assert harness.running(spec) == 1
    harness.stop(spec.ref)
    assert harness.running(spec) == 0


@pytest.mark.parametrize("op", ["ensure_stopped", "ensure_deleted"])
def test_given_grace_overrides_the_stop_timeout(harness, op):
    spec = harness.spec("stubborn")
    spec = replace(spec, app=replace(spec.app, stop_timeout_s=300))
    harness.run(spec)
    assert harness.driver.ensure_stopped(spec.ref).state is STOPPING
    harness.wait(lambda: getattr(harness.driver, op)(spec.ref, grace_s=0.2), STOPPED, ABSENT)
    assert harness.running(spec) == 0


# Stopping


def test_stop_ends_the_app_and_is_observed_as_stopped(harness):
    spec = harness.spec()
    harness.run(spec)
    first = harness.driver.ensure_stopped(spec.ref)
    assert first.state in (STOPPING, STOPPED)
    assert first.ref == spec.ref
    harness.stop(spec.ref)
    assert harness.running(spec) == 0
    assert harness.driver.observe(spec.ref).state in (STOPPED, ABSENT)
    assert harness.driver.ensure_stopped(spec.ref).state in (STOPPED, ABSENT)


def test_stop_closes_its_generation(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.stop(spec.ref)
    with pytest.raises(StaleCommand) as caught:
        harness.start(spec)
    check_error(caught.value)
    assert harness.running(spec) == 0
    assert harness.starts(spec) == 1


def test_stop_closes_its_generation_before_the_app_has_ended(harness):
    spec = harness.spec("stubborn")
    harness.run(spec)
    assert harness.driver.ensure_stopped(spec.ref).state is STOPPING
    with pytest.raises(StaleCommand):
        harness.start(spec)
    harness.stop(spec.ref)
    assert harness.running(spec) == 0


def test_stopping_a_missing_workspace_closes_its_and_lower_generations(harness):
    spec = harness.spec(generation=1)
    third = harness.later(spec, by=2)
    assert harness.driver.ensure_stopped(third.ref).state in (STOPPED, ABSENT)
    for late in (spec, harness.later(spec), third):
        with pytest.raises(StaleCommand):
            harness.start(late)
    assert harness.running(spec) == 0
    harness.run(harness.later(third))
    assert harness.running(spec) == 1


def test_a_higher_generation_starts_after_a_stop(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.stop(spec.ref)
    following = harness.later(spec)
    seen = harness.run(following)
    assert seen.ref == following.ref
    assert seen.spec_digest == following.digest()
    assert harness.running(spec) == 1
    assert harness.starts(spec) == 2


# Deleting


def test_deleting_a_missing_workspace_is_success(harness):
    spec = harness.spec()
    assert harness.driver.ensure_deleted(spec.ref).state is ABSENT
    assert harness.driver.ensure_deleted(spec.ref).state is ABSENT


@pytest.mark.parametrize("before", ["missing", "running", "stopped"])
def test_delete_closes_its_generation(harness, before):
    spec = harness.spec()
    if before != "missing":
        harness.run(spec)
    if before == "stopped":
        harness.stop(spec.ref)
    harness.delete(spec.ref)
    with pytest.raises(StaleCommand) as caught:
        harness.start(spec)
    check_error(caught.value)
    assert harness.running(spec) == 0
    assert harness.driver.observe(spec.ref).state is ABSENT


def test_delete_leaves_nothing_but_the_home(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.delete(spec.ref)
    assert harness.running(spec) == 0
    assert harness.leftovers(spec) == []
    assert harness.home_exists(spec)
    assert harness.driver.logs(spec.ref) == ""


def test_deleted_workspace_can_be_started_again_with_its_home(harness):
    spec = harness.spec()
    harness.run(spec)
    harness.delete(spec.ref)
    harness.run(harness.later(spec))
    assert harness.home_exists(spec)
    assert harness.starts(spec) == 2


def test_deletion_wins_over_a_pending_stop(harness):
    spec = harness.spec("stubborn")
    harness.run(spec)
    assert harness.driver.ensure_stopped(spec.ref).state is STOPPING
    harness.delete(spec.ref)
    assert harness.running(spec) == 0
    assert harness.leftovers(spec) == []


# Stale messages


@pytest.mark.parametrize("op", ["ensure_stopped", "ensure_deleted"])
def test_an_old_message_cannot_end_a_newer_incarnation(harness, op):
    spec = harness.spec()
    harness.run(spec)
    harness.stop(spec.ref)
    following = harness.later(spec)
    harness.run(following)
    with pytest.raises(StaleCommand) as caught:
        getattr(harness.driver, op)(spec.ref)
    check_error(caught.value)
    assert harness.driver.observe(following.ref).state is RUNNING
    assert harness.running(spec) == 1


def test_an_old_start_does_not_touch_a_newer_incarnation(harness):
    spec = harness.spec()
    following = harness.later(spec)
    harness.run(following)
    with pytest.raises((StaleCommand, Conflict)):
        harness.start(spec)
    assert harness.driver.observe(following.ref).state is RUNNING
    assert harness.starts(spec) == 1


# Observing


def test_unknown_workspace_is_absent(harness):
    ref = WorkspaceRef(str(uuid.uuid4()), 7)
    seen = harness.driver.observe(ref)
    assert seen.state is ABSENT and not seen.ready and seen.endpoint == ""
    assert seen.ref == ref
    assert harness.driver.logs(ref) == ""


@pytest.mark.parametrize("asked", [1, 9])
def test_observe_returns_the_observed_generation(harness, asked):
    spec = harness.spec(generation=5)
    harness.run(spec)
    assert harness.driver.observe(replace(spec.ref, generation=asked)).ref == spec.ref


def test_observing_changes_nothing(harness):
    spec = harness.spec()
    harness.driver.observe(spec.ref)
    harness.driver.list_owned()
    harness.driver.logs(spec.ref)
    assert harness.leftovers(spec) == []
    assert harness.run(spec).state is RUNNING


def test_list_owned_returns_exactly_our_workspaces(harness):
    assert harness.driver.list_owned() == ()
    one, two = harness.spec(), harness.spec()
    harness.run(one)
    harness.run(two)
    seen = {o.ref: o.state for o in harness.driver.list_owned()}
    assert seen == {one.ref: RUNNING, two.ref: RUNNING}
    harness.delete(one.ref)
    assert {o.ref for o in harness.driver.list_owned()} == {two.ref}
    harness.delete(two.ref)
    assert harness.driver.list_owned() == ()


def test_changes_since_a_cursor_include_every_change(harness):
    one, two = harness.spec(), harness.spec()
    harness.run(one)
    everything = harness.driver.observe_all()
    assert everything.complete and [found.ref for found in everything.listed] == [one.ref]
    harness.run(two)
    changes = harness.driver.observe_all(everything.cursor)
    assert two.ref in {found.ref for found in changes.listed}
    harness.delete(one.ref)
    # What is gone shows only in complete lists.
    assert {found.ref for found in harness.driver.observe_all("unknown").listed} == {two.ref}


def test_releasing_the_host_keeps_workspaces_and_is_idempotent(harness):
    spec = harness.spec()
    harness.run(spec)
    assert harness.driver.release_host(keep_workspaces=True) == 0
    assert harness.driver.release_host(keep_workspaces=True) == 0
    assert harness.driver.observe(spec.ref).state is RUNNING


def test_logs_are_the_last_lines_newest_last(harness):
    spec = harness.spec()
    harness.run(spec)
    deadline = time.monotonic() + 5
    while len(harness.driver.logs(spec.ref).splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    lines = harness.driver.logs(spec.ref).splitlines()
    assert len(lines) >= 2
    assert harness.driver.logs(spec.ref, tail_lines=1).splitlines() == lines[-1:]
    told = harness.driver.read_log(spec.ref, after=None)
    assert told.text.splitlines() == lines
    assert harness.driver.read_log(spec.ref, after=told.reached).text == ""
    assert harness.driver.read_log(spec.ref, after=0).text == told.text
    other = WorkspaceRef(spec.ref.workspace_id, spec.ref.generation + 1)
    assert harness.driver.read_log(other, after=None).text == ""
    if not harness.driver.traits.simulated:
        assert lines[-2:] == [
            f"first line of {spec.ref.workspace_id}",
            f"app good of {spec.ref.workspace_id}",
        ]
    assert not any(secret in "\n".join(lines) for secret in (spec.app_token, spec.agent.token))


# Secrets


def test_secrets_are_readable_by_the_workspace_only(harness):
    spec = harness.spec()
    other = replace(spec, app_token="x", agent=replace(spec.agent, token="y"))
    assert spec.digest() == other.digest()
    harness.run(spec)
    for secret in (spec.app_token, spec.agent.token):
        assert secret not in repr(spec)
        assert harness.places_of(secret) == []
