"""Shares of real GPUs: granted only on nodes that enforce their memory limits."""

from __future__ import annotations

import pytest

from portal.fleet.inventory.models import AllocatedDevice, Device, Node, Pool
from portal.scheduling import capacity, fits, snapshot_cache
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.verdicts import Outcome
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.gpu.shares import part_mib
from provisioning.share_messages import PROVIDES_SHARES
from tests import sites
from tests.factories import FlavorFactory, local_pool_with, node_info
from tests.scheduling.test_software_requirements import needs, verdict
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture
def half(catalog):
    """A flavor of half a GPU."""
    return FlavorFactory(slug="half", accelerator_count=1, accelerator_milli=500)


@pytest.fixture
def nodes(half):
    """One node that enforces shares, and one that does not."""
    pool = local_pool_with(
        node_info("none", gpus=2), node_info("guards", gpus=1, provides=(PROVIDES_SHARES,))
    )
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0, scrub_required=False)
    return pool


def test_shares_use_guarded_nodes_and_whole_gpus_any_node(nodes, half, make, alice, bob):
    FlavorFactory(slug="whole", accelerator_count=1)
    assert (fits.fit_flavor(half).pools[0].nodes_now, fits.fit_flavor(half).pools[0].starts_now) == (1, 2)
    shares = [make(alice, "half") for _ in range(3)]
    placed = [each.allocations.get().node.name for each in shares if each.state == State.PROVISIONING]
    assert placed == ["guards", "guards"]
    assert make(bob, "whole").allocations.get().node.name == "none"


def test_waiting_request_names_the_node_without_share_enforcement(nodes, make, alice, bob, team):
    for _ in range(2):
        make(alice, "half")
    rows_changed()
    waits = verdict(team, bob, "half")
    assert waits.outcome is Outcome.QUEUED
    codes = {node: reason.code for node, reason in waits.reasons}
    assert codes == {
        "none": PlacementCode.SHARES_NOT_HELD,
        "guards": PlacementCode.DEVICE_SHARES_SHORT,
    }


def test_missing_share_enforcement_is_the_refusal_reason(nodes, team, alice):
    Node.objects.filter(name="guards").update(provides=[])
    rows_changed()
    refused = verdict(team, alice, "half")
    assert refused.outcome is Outcome.IMPOSSIBLE
    assert refused.reason.code is AdmissionCode.NO_NODE_HOLDS_SHARES
    assert "GPU shares" in refused.message and "whole GPU" in refused.next_action
    assert {reason.code for _, reason in refused.reasons} == {PlacementCode.SHARES_NOT_HELD}


def test_share_request_impossible_for_another_reason_shows_that_reason(nodes, team, alice):
    FlavorFactory(slug="three-halves", accelerator_count=3, accelerator_milli=500)
    assert verdict(team, alice, "three-halves").reason.code is AdmissionCode.NO_NODE_LARGE_ENOUGH
    needs(mounts=["imagenet"])
    assert verdict(team, alice, "half").reason.code is AdmissionCode.NO_NODE_SHOWS_FOLDERS


def test_simulated_shares_need_no_enforcement(half, team, alice, pool):
    FlavorFactory(slug="simulated-half", pool=pool, accelerator_count=1, accelerator_milli=500)
    assert verdict(team, alice, "simulated-half").outcome is Outcome.FITS_NOW


@pytest.mark.parametrize("scrubbed", [False, True])
def test_scrubbed_shared_gpu_is_free_only_after_all_users_left(nodes, make, alice, bob, scrubbed):
    """No preemption for capacity that stays unavailable."""
    Pool.objects.update(scrub_required=scrubbed)
    rows_changed()
    first, second = make(alice, "half"), make(alice, "half")
    waits = make(bob, "half")
    assert waits.state == State.PENDING
    with snapshot_cache.preview_cache.use() as snapshot:
        placer, workload = snapshot.placer, snapshot.scheduler.pending.items[str(waits.pk)]
        one, both = [str(first.pk)], [str(first.pk), str(second.pk)]
        for _ in range(2):
            assert not placer.fits(workload, [])
            assert placer.fits(workload, one) is not scrubbed
            assert placer.fits(workload, both)
            assert placer.fits(workload, both[::-1])
        with placer.prefix_fits() as fits_without:
            assert [fits_without(workload, excluded) for excluded in (one, both, one, both)] == [
                not scrubbed, True, not scrubbed, True,
            ]  # fmt: skip
        assert not placer.fits(workload, [])


# --- memory of flavors with and without an amount -------------------------------------------------


@pytest.fixture
def one_gpu(half):
    """A node with one GPU of 80,000 MiB; a flavor of 400 milli with a larger amount than is left."""
    FlavorFactory(slug="large", accelerator_count=1, accelerator_milli=400, accelerator_memory_mib=50_000)
    node = node_info("guards", gpus=1, memory_mib=262_144, provides=(PROVIDES_SHARES,))
    pool = local_pool_with(node)
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0, scrub_required=False)
    Device.objects.filter(node__pool=pool).update(memory_mib=80_000)
    rows_changed()
    return pool


def running(*workspaces) -> list[bool]:
    return [each.state == State.PROVISIONING for each in workspaces]


@pytest.mark.parametrize("sizes", [("half", "large"), ("large", "half")])
def test_shares_do_not_exceed_gpu_memory(one_gpu, make, alice, bob, sizes):
    """Half of it is 40,000, whether or not the flavor names an amount."""
    first, second = make(alice, sizes[0]), make(bob, sizes[1])
    assert running(first, second) == [True, False]
    held = AllocatedDevice.objects.get(active=True)
    assert held.memory_mib == {"half": 40_000, "large": 50_000}[sizes[0]]
    assert held.memory_mib == part_mib(80_000, held.milli, held.memory_mib), "what the node holds it to"


def test_grant_without_memory_amount_is_counted(one_gpu, make, alice, bob):
    """Grants from before amounts were stored."""
    make(alice, "half")
    AllocatedDevice.objects.update(memory_mib=0)
    rows_changed()
    state = next(iter(capacity.load().values())).nodes[0]
    assert (state.devices[0].free_milli, state.devices[0].free_memory_mib) == (500, 40_000)
    held = capacity.allocations_by_workspace([Workspace.objects.get().pk])
    ((_, place, _),) = held[str(Workspace.objects.get().pk)]
    assert place.nodes[0].devices[0].memory_mib == 40_000
    assert running(make(bob, "large")) == [False]


def test_whole_gpu_has_no_memory_amount(one_gpu, make, alice):
    FlavorFactory(slug="whole", accelerator_count=1)
    make(alice, "whole")
    assert AllocatedDevice.objects.get(active=True).memory_mib == 0
