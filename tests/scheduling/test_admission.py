"""Admission verdicts (fits now, queued, impossible) and their messages; simulated pools only on request."""

from __future__ import annotations

import pytest

from portal.catalog import selectors as catalog_selectors
from portal.catalog.models import Flavor, Template
from portal.common.reasons.codes import Rule
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Device, PoolState
from portal.scheduling import capacity, offers
from portal.scheduling.admission import assess
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.verdicts import Outcome
from portal.workspaces.lifecycle import State
from tests.factories import FlavorFactory, local_pool_with, node_info, only_node, simulated_pool
from tests.rows import error_message
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db


def jupyter() -> Template:
    return Template.objects.get(slug="jupyterlab")


def small() -> Flavor:
    return Flavor.objects.get(slug="cpu-small")


def test_request_that_fits_starts_now(local_pool):
    verdict = assess(template=jupyter(), flavor=small())
    assert (verdict.outcome, verdict.reason) == (Outcome.FITS_NOW, Reason(AdmissionCode.FITS_NOW))
    assert verdict.message == "Starts now."
    assert verdict.pool == local_pool
    assert [part.node for part in verdict.placement.nodes] == ["node-1"]
    assert verdict.possible


def test_request_without_any_pool_is_impossible(catalog):
    verdict = assess(template=jupyter(), flavor=small())
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert verdict.reason == Reason(AdmissionCode.NO_ENABLED_POOL)
    assert verdict.message == "No pool is enabled for this size."
    assert verdict.next_action


def test_disabled_pool_is_ignored(local_pool):
    local_pool.enabled = False
    local_pool.save()
    assert assess(template=jupyter(), flavor=small()).reason.code is AdmissionCode.NO_ENABLED_POOL


def test_request_before_any_inventory_is_impossible(catalog):
    local_pool_with()
    verdict = assess(template=jupyter(), flavor=small())
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert verdict.reason.code is AdmissionCode.NO_NODE_REPORTED


def test_program_missing_on_all_nodes_is_impossible(catalog):
    local_pool_with(node_info(programs=("bash",)))
    template = jupyter()
    verdict = assess(template=template, flavor=small())
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert verdict.reason.code is AdmissionCode.NO_NODE_HAS_PROGRAM
    assert verdict.message == "JupyterLab needs jupyter-lab, which is not installed on any node."
    assert verdict.next_action == template.install_hint


def test_node_without_the_program_is_skipped(catalog):
    local_pool_with(node_info("a", programs=("bash",)), node_info("b"))
    verdict = assess(template=jupyter(), flavor=small())
    assert [part.node for part in verdict.placement.nodes] == ["b"]


def test_offline_node_without_the_program_is_not_awaited(local_pool, catalog):
    local_pool.nodes.update(online=False, programs={})
    verdict = assess(template=jupyter(), flavor=small())
    assert verdict.outcome is Outcome.IMPOSSIBLE


def test_request_too_large_for_every_node_is_impossible(local_pool):
    verdict = assess(template=jupyter(), flavor=FlavorFactory(cpu_milli=9000))
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert verdict.reason.code is AdmissionCode.NO_NODE_LARGE_ENOUGH
    assert verdict.message == "No node is large enough: node-1: 8 of 8 CPU cores free, needs 9."
    assert verdict.next_action == "Choose a smaller size."
    assert verdict.reasons == (
        ("node-1", Reason(PlacementCode.CPU_SHORT, {"free": 8000, "total": 8000, "needed": 9000})),
    )


def test_unknown_accelerator_is_impossible(local_pool):
    flavor = FlavorFactory(accelerator_count=1, accelerator_model="NVIDIA B200")
    verdict = assess(template=jupyter(), flavor=flavor)
    assert verdict.message == "No node is large enough: node-1 has no NVIDIA B200."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"online": False}, "Waiting for capacity: node-1 is offline."),
        ({"cordoned": True}, "Waiting for capacity: node-1 is cordoned by an operator."),
    ],
)
def test_request_for_capacity_that_may_return_is_queued(local_pool, change, words):
    local_pool.nodes.update(**change)
    verdict = assess(template=jupyter(), flavor=small())
    assert (verdict.outcome, verdict.reason.code) == (Outcome.QUEUED, Rule.PLACEMENT)
    assert verdict.message == words
    assert verdict.possible
    assert verdict.next_action
    assert verdict.placement is None


def test_unenforceable_gpu_share_is_refused_in_the_preview(catalog):
    local_pool_with(node_info(gpus=1))
    whole = FlavorFactory(accelerator_count=1)
    half = FlavorFactory(accelerator_count=1, accelerator_milli=500)
    assert assess(template=jupyter(), flavor=whole).outcome is Outcome.FITS_NOW
    verdict = assess(template=jupyter(), flavor=half)
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert [reason.code for _, reason in verdict.reasons] == [PlacementCode.SHARES_NOT_HELD]


def test_unreachable_pool_queues_requests(local_pool):
    local_pool.state = PoolState.UNREACHABLE
    local_pool.save()
    verdict = assess(template=jupyter(), flavor=small())
    assert verdict.outcome is Outcome.QUEUED
    assert "its pool does not respond" in verdict.message


def test_offline_node_that_is_too_small_stays_impossible(local_pool):
    local_pool.nodes.update(online=False)
    assert assess(template=jupyter(), flavor=FlavorFactory(cpu_milli=9000)).outcome is Outcome.IMPOSSIBLE


def test_occupied_capacity_queues_with_the_missing_amount(make, alice, local_pool):
    big = FlavorFactory(slug="big", cpu_milli=6000, memory_mib=1024)
    make(alice, "big")
    verdict = assess(template=jupyter(), flavor=big)
    assert verdict.outcome is Outcome.QUEUED
    assert verdict.message == "Waiting for capacity: node-1: 2 of 8 CPU cores free, needs 6."


def test_further_nodes_are_counted_in_the_message(catalog, make, alice):
    local_pool_with(*(node_info(f"n{n}") for n in range(4)))
    verdict = assess(template=jupyter(), flavor=FlavorFactory(cpu_milli=9000))
    assert verdict.reason.params["more_nodes"] == 3 and verdict.message.endswith(", and 3 more nodes.")
    assert len(verdict.reasons) == 4


def test_simulated_pools_accept_only_their_own_flavors(pool):
    assert assess(template=jupyter(), flavor=small()).reason.code is AdmissionCode.NO_ENABLED_POOL
    own = Flavor.objects.get(slug="sim-cpu")
    assert assess(template=jupyter(), flavor=own).pool == pool
    any_h100 = FlavorFactory(accelerator_count=1)
    assert assess(template=jupyter(), flavor=any_h100).outcome is Outcome.IMPOSSIBLE


def test_flavor_of_a_pool_is_not_placed_elsewhere(pool, local_pool, tmp_path):
    own = Flavor.objects.get(slug="sim-cpu")
    pool.enabled = False
    pool.save()
    simulated_pool(str(tmp_path / "other"), slug="other")
    assert assess(template=jupyter(), flavor=own).outcome is Outcome.IMPOSSIBLE


def test_simulated_nodes_have_every_program(pool):
    pool.nodes.update(programs={})
    assert assess(template=jupyter(), flavor=Flavor.objects.get(slug="sim-cpu")).possible


def test_unhealthy_or_absent_device_is_not_granted(pool):
    four = Flavor.objects.get(slug="sim-h100-x4")
    devices = list(Device.objects.order_by("node__name", "index"))
    Device.objects.filter(pk=devices[0].pk).update(healthy=False)
    Device.objects.filter(pk=devices[4].pk).update(present=False)
    verdict = assess(template=jupyter(), flavor=four)
    # The unhealthy one may pass a check later; the absent one is missing.
    assert verdict.outcome is Outcome.QUEUED
    assert "3 of 4 × Simulated H100 free, needs 4 on one node (1 out of service)" in verdict.message
    Device.objects.filter(pk=devices[0].pk).update(present=False)
    rows_changed()
    verdict = assess(template=jupyter(), flavor=four)
    assert verdict.outcome is Outcome.IMPOSSIBLE
    assert "3 of 3 × Simulated H100 free, needs 4 on one node" in verdict.message


def test_given_resources_override_those_of_the_flavor(local_pool):
    flavor = small()
    resources = {**flavor.as_request(), "cpu_milli": 9000}
    assert not assess(template=jupyter(), flavor=flavor, resources=resources).possible


def test_preview_and_creation_agree(make, alice, team, local_pool):
    FlavorFactory(slug="half", cpu_milli=4000, memory_mib=1024)
    for name in ("one", "two", "three"):
        (offer,) = (o for o in offers.flavor_offers(jupyter(), team, alice) if o.flavor.slug == "half")
        made = make(alice, "half", name=name)
        expected = State.PROVISIONING if offer.verdict.outcome is Outcome.FITS_NOW else State.PENDING
        assert made.state == expected
        if made.state == State.PENDING:
            assert error_message(made) == offer.verdict.message


def test_snapshot_counts_allocations_once(make, alice, pool):
    for name in ("a", "b", "c"):
        make(alice, "sim-h100-x1", name=name)
    states = capacity.load([pool])[pool.pk].nodes
    held = Flavor.objects.get(slug="sim-h100-x1")
    used = sum(state.cpu_milli - state.free_cpu_milli for state in states)
    assert used == 3 * held.cpu_milli
    assert sum(state.memory_mib - state.free_memory_mib for state in states) == 3 * held.memory_mib
    assert sum(device.free_milli == 0 for state in states for device in state.devices) == 3


def test_snapshot_of_a_large_pool_takes_seven_queries(
    catalog, tmp_path, django_assert_num_queries, django_assert_max_num_queries
):
    large = simulated_pool(str(tmp_path / "large"), slug="large", nodes=100, gpus=8)
    with django_assert_num_queries(7):
        states = capacity.load([large])[large.pk].nodes
    assert sum(len(state.devices) for state in states) == 800


def test_template_offers_name_missing_programs(catalog):
    pool = local_pool_with(node_info(programs=("jupyter-lab", "marimo")))
    found = {
        offer.template.slug: offer
        for offer in catalog_selectors.template_offers(catalog_selectors.all_templates())
    }
    assert found["jupyterlab"].reason == ""
    assert found["vscode"].reason == "code-server is not installed on any node."
    assert found["vscode"].next_action
    assert found["rstudio"].reason == "rserver is not installed on any node."
    assert "Install R and RStudio Server" in found["rstudio"].next_action
    node = only_node(pool)
    node.programs |= {"code-server": "/usr/bin/code-server", "rserver": "/usr/lib/rstudio-server/bin/rserver"}
    node.save()
    found = {
        offer.template.slug: offer
        for offer in catalog_selectors.template_offers(catalog_selectors.all_templates())
    }
    assert found["vscode"].reason == found["rstudio"].reason == ""
