"""Reported endpoints of apps, and refusals of a driver before creation."""

from __future__ import annotations

import pytest

from portal.catalog.models import Flavor, Template
from portal.common.reasons.wording import message_of
from portal.scheduling import admission, blockers
from portal.scheduling.verdicts import Outcome
from portal.workspaces import results
from portal.workspaces.gateway import publishing
from portal.workspaces.lifecycle import State
from provisioning.drivers.local.driver import LocalDriver
from provisioning.traits import STARTING_OBSERVE_S
from provisioning.types import ObservedState, Op, PoolConfig, WorkspaceRef
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, endpoint_of, seen, taken

pytestmark = pytest.mark.django_db


REF = WorkspaceRef("11111111-2222-3333-4444-555555555555", 3)


@pytest.mark.parametrize(
    ("endpoint", "accepted"),
    [
        ("node:ws-11111111222233334444555555555555.3", True),
        ("node:ws-11111111222233334444555555555555.2", False),
        ("node:ws-11111111222233334444555555555555.03", False),
        ("node:ws-aaaaaaaabbbbccccddddeeeeeeeeeeee.3", False),
        ("node:ws-11111111222233334444555555555555.3/../x", False),
        ("ws-11111111222233334444555555555555.3", False),
        ("http://127.0.0.1:18000", False),
        ("http://169.254.169.254:18000", False),
        ("node:", False),
        ("", False),
    ],
)
def test_local_driver_accepts_only_the_socket_of_the_current_start(endpoint, accepted):
    assert LocalDriver(PoolConfig("local", "local", {})).accepts_endpoint(endpoint, REF) is accepted


def test_reported_endpoint_on_the_host_is_not_routed(clock, make, alice, local_pool, sent):
    workspace = make(alice)
    answer(sent, Op.START, ObservedState.STARTING)
    results.agent_ready(
        workspace_id=workspace.pk, generation=workspace.generation, endpoint="http://127.0.0.1:8002"
    )
    workspace.refresh_from_db()
    assert (workspace.state, workspace.endpoint) == (State.PROVISIONING, "")
    # The driver is queried instead, and its endpoint is used.
    true = endpoint_of(workspace)
    results.apply_result(seen(taken(sent, Op.OBSERVE), ObservedState.RUNNING, ready=True, endpoint=true))
    workspace.refresh_from_db()
    assert (workspace.state, workspace.endpoint) == (State.RUNNING, true)


def test_unsupported_request_is_impossible_before_creation(local_pool, catalog):
    flavor = Flavor.objects.create(slug="pair", name="Two nodes", cpu_milli=100, memory_mib=128, nodes=2)
    verdict = admission.assess(template=Template.objects.get(slug="jupyterlab"), flavor=flavor)
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert verdict.message == (
        "Pool this-machine cannot run it: A workspace of this pool runs on one machine. "
        "Choose a flavor with 1 node."
    )
    beside_others = message_of(blockers.too_large_reason(verdict.reasons))
    assert beside_others.endswith("Choose a flavor with 1 node."), "not with two full stops"


def test_pool_with_invalid_configuration_refuses_with_a_message(pool, catalog):
    pool.config = {**pool.config, "no_such_knob": 1}
    pool.save()
    flavor = Flavor.objects.filter(pool=pool).order_by("slug")[0]
    verdict = admission.assess(template=Template.objects.get(slug="jupyterlab"), flavor=flavor)
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert "no_such_knob" in verdict.message


def test_route_is_published_while_the_app_starts(clock, make, alice, local_pool, sent, monkeypatch):
    published = []
    monkeypatch.setattr(publishing, "publish", lambda row: published.append((row.state, row.endpoint)))
    workspace = make(alice)
    told = {"workspace_id": workspace.pk, "generation": workspace.generation}
    results.agent_launched(**told, endpoint="http://127.0.0.1:8002")
    workspace.refresh_from_db()
    assert workspace.endpoint == ""
    results.agent_launched(**told, endpoint=endpoint_of(workspace))
    workspace.refresh_from_db()
    assert (workspace.state, workspace.endpoint) == (State.PROVISIONING, endpoint_of(workspace))
    assert published[-1] == (State.PROVISIONING, endpoint_of(workspace))
    # The later result of the start changes nothing.
    answer(sent, Op.START, ObservedState.STARTING)
    workspace.refresh_from_db()
    assert workspace.endpoint == endpoint_of(workspace)
    with pytest.raises(results.Revoked):
        results.agent_launched(workspace_id=workspace.pk, generation=99, endpoint=endpoint_of(workspace))


def test_exit_reported_during_an_observation_is_observed_again(clock, make, alice, local_pool, sent):
    workspace = make(alice)
    answer(sent, Op.START, ObservedState.STARTING)
    told = {"workspace_id": workspace.pk, "generation": workspace.generation}
    results.agent_ready(**told, endpoint=endpoint_of(workspace))
    clock.shift(60)
    sweep()
    early = taken(sent, Op.OBSERVE)
    results.agent_exited(**told, exit_code=1, log_tail="bye")
    results.apply_result(seen(early, ObservedState.RUNNING, ready=True))
    clock.shift(STARTING_OBSERVE_S + 1)
    sweep()
    results.apply_result(seen(taken(sent, Op.OBSERVE), ObservedState.FAILED, exit_code=1))
    workspace.refresh_from_db()
    assert (workspace.state, workspace.termination_reason) == (State.TERMINATING, "app_exited")
