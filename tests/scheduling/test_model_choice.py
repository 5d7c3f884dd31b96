"""A request satisfied by several models gets the best of all pools: by score, demand and price."""

from __future__ import annotations

import pytest

from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.fleet.inventory import cordons
from portal.fleet.inventory.models import AllocatedDevice, Device, Pool
from portal.quota.limits.models import Quota
from portal.scheduling import choice, cycle
from portal.scheduling.admission import assess
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.placement_request import Variant
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import DeviceInfo, NodeInfo, ResourceRequest
from tests import sites
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog
A100, L4, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "Tesla T4"
GIB = {A100: 80, L4: 24, T4: 16}


def machine(name: str, *models: str) -> NodeInfo:
    devices = tuple(
        DeviceInfo(uuid=f"GPU-{name}-{index}", index=index, model=model, memory_mib=1024 * GIB[model])
        for index, model in enumerate(models)
    )
    return node_info(name, devices=devices, cpu_milli=64_000, memory_mib=262_144)


@pytest.fixture
def machines(catalog):
    """Create a pool of machines with shared homes, and a flavor for 8 GiB of any model."""

    def create(*nodes: NodeInfo, slug: str = "this-machine") -> Pool:
        pool = local_pool_with(*nodes, slug=slug)
        pool.config = {**pool.config, "homes_shared": True}
        pool.hand_out_max_age_hours = 0
        pool.save()
        rows_changed()
        return pool

    FlavorFactory(slug="any", accelerator_count=1, accelerator_memory_mib=8192)
    return create


def preview(team, actor, slug: str = "any") -> Verdict:
    flavor = Flavor.objects.get(slug=slug)
    return assess(template=Template.objects.get(slug="jupyterlab"), flavor=flavor, team=team, actor=actor)


def model_of(workspace: Workspace) -> str:
    devices = AllocatedDevice.objects.filter(allocation__workspace=workspace, active=True)
    return ", ".join(devices.values_list("device__model", flat=True))


def created(make, team, actor, slug: str = "any") -> tuple[str, str]:
    """Return the previewed result and the model of the creation, on the previewed node."""
    verdict = preview(team, actor, slug)
    workspace = make(actor, slug)
    if verdict.outcome is Outcome.FITS_NOW:
        assert verdict.placement is not None
        grants = [grant.uuid for part in verdict.placement.nodes for grant in part.devices]
        held = AllocatedDevice.objects.filter(allocation__workspace=workspace)
        assert list(held.values_list("device__uuid", flat=True)) == grants
    return verdict.message, model_of(workspace)


def test_least_valuable_sufficient_model_is_chosen(machines, make, alice, team):
    machines(machine("a", A100), machine("b", T4))
    assert created(make, team, alice) == ("Starts now on T4: enough for your 8 GiB; A100 stays free.", T4)
    assert created(make, team, alice) == ("Starts now on A100: enough for your 8 GiB.", A100)


def test_model_awaited_by_others_is_avoided(machines, make, alice, bob, team):
    machines(machine("a", T4), machine("b", L4, L4))
    FlavorFactory(slug="one-t4", accelerator_count=1, accelerator_model=T4)
    FlavorFactory(slug="two-t4", accelerator_count=2, accelerator_model=T4, expected_hours=1)
    machines(machine("c", T4, T4), slug="two")
    assert model_of(make(bob, "one-t4")) == T4
    assert model_of(make(bob, "one-t4")) == T4
    waiting = [make(bob, "two-t4") for _ in range(3)]
    assert {row.state for row in waiting} == {State.PENDING}
    assert created(make, team, alice) == (
        "Starts now on L4: enough for your 8 GiB; T4 kept for 3 queued workspaces.",
        L4,
    )


def test_best_model_of_all_pools_is_chosen(machines, make, alice, team):
    machines(machine("a", A100), slug="a-first")
    machines(machine("b", T4), slug="b-second")
    assert created(make, team, alice)[1] == T4
    assert created(make, team, alice)[1] == A100


def test_more_expensive_model_is_avoided(machines, make, alice, team):
    machines(machine("a", A100), machine("b", T4))
    FlavorFactory(slug="a100", accelerator_count=1, accelerator_model=A100, price_cents=50)
    FlavorFactory(slug="t4", accelerator_count=1, accelerator_model=T4, price_cents=200)
    rows_changed()
    message, model = created(make, team, alice)
    assert (message, model) == ("Starts now on A100: enough for your 8 GiB; T4 costs more.", A100)


def test_models_above_the_quota_are_not_chosen(machines, make, alice, team):
    machines(machine("a", A100), machine("b", T4))
    Quota.objects.create(team=team, resource="gpu:t4", quota=0, borrowing_limit=0)
    rows_changed()
    assert created(make, team, alice) == ("Starts now on A100: enough for your 8 GiB.", A100)


def test_queued_request_starts_on_any_model_that_becomes_free(machines, make, alice, team):
    machines(machine("a", A100, A100), machine("b", T4))
    device = Device.objects.get(model=T4)
    cordons.cordon_device(actor=SYSTEM, device_id=device.pk, reason="test")
    assert [model_of(make(alice, "any")) for _ in range(2)] == [A100, A100]
    waiting = make(alice, "any")
    assert waiting.state == State.PENDING
    cordons.lift_cordon(actor=SYSTEM, device_id=device.pk)
    cycle.run()
    assert model_of(waiting) == T4


def test_requests_of_a_burst_are_decided_in_order(machines, make, alice, team):
    machines(machine("a", A100, A100), machine("b", T4))
    devices = list(Device.objects.all())
    for device in devices:
        cordons.cordon_device(actor=SYSTEM, device_id=device.pk, reason="test")
    waiting = [make(alice, "any") for _ in range(3)]
    for device in devices:
        cordons.lift_cordon(actor=SYSTEM, device_id=device.pk)
    report = cycle.run()
    assert report is not None and len(report.started) == 3
    assert [model_of(row) for row in waiting] == [T4, A100, A100]


def test_devices_of_a_request_are_of_one_model_on_a_mixed_node(machines, make, alice, team):
    machines(machine("a", T4, A100, A100))
    FlavorFactory(slug="two", accelerator_count=2)
    assert created(make, team, alice, "two") == ("Starts now on A100.", f"{A100}, {A100}")


def test_a_request_for_one_model_needs_no_reason(machines, alice, team):
    machines(machine("a", T4))
    FlavorFactory(slug="t4", accelerator_count=1, accelerator_model=T4)
    assert preview(team, alice, "t4").reason.code is AdmissionCode.FITS_NOW


def variants(*models: str) -> list[Variant]:
    return [
        Variant(ResourceRequest(1, 1), {}, f"gpu:{model}", (model,), memory_mib)
        for memory_mib, model in enumerate(models)
    ]


@pytest.mark.parametrize(
    ("prices", "waiting", "dearness"),
    [
        ({}, {}, {}),
        ({}, {"gpu:x": 1}, {"x": 16}),
        ({}, {"gpu:x": 1, "gpu:y": 5}, {}),
        ({"gpu:x": 100, "gpu:y": 200}, {}, {"y": 8}),
        ({"gpu:x": 100, "gpu:y": 1000}, {}, {"y": 16}),
        ({"gpu:x": 100, "gpu:y": 200}, {"gpu:x": 1}, {"x": 8}),
        ({"gpu:y": 200}, {}, {}),
    ],
)
def test_model_penalty_depends_on_waiting_requests_and_prices(prices, waiting, dearness):
    worth = choice.model_preference(variants("x", "y"), prices, waiting)
    assert worth is not None and worth.penalty == dearness
    assert choice.model_preference(variants("x"), prices, waiting) is None
