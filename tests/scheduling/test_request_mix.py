"""The expected requests of a pool: the catalog at first, then past requests."""

from __future__ import annotations

import pytest

from portal.catalog.models import Flavor
from portal.scheduling import learning, snapshot_cache
from portal.scheduling.engine.placement.mix import (
    DEFAULT_MIX,
    SCARCITY_ONE,
    WINDOW,
    RequestMix,
    Shape,
    is_learning_due,
)
from portal.scheduling.models import ChangeKind, LearntMix, SnapshotChange
from portal.scheduling.tasks import learn_mixes
from portal.workspaces.models import Workspace
from provisioning.types import AcceleratorRequest, DeviceGrant, NodePlacement, Placement, ResourceRequest
from tests.factories import simulated_pool
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db

LIGHT = ResourceRequest(1000, 1024, accelerators=AcceleratorRequest(1))
HEAVY = ResourceRequest(48_000, 1024, accelerators=AcceleratorRequest(1))


def shapes(mix: RequestMix) -> dict[int, int]:
    """Return the weight by CPU."""
    return {shape.cpu_milli: weight for shape, weight in mix.shapes}


def expected(cache, pool) -> RequestMix:
    with cache.use() as snapshot:
        return snapshot.pools[pool.pk].mix


def ask(make, alice, flavor: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        make(alice, flavor, name=f"w{number}")


def test_new_pool_expects_the_flavors_of_its_catalog(pool, local_pool):
    mix = expected(snapshot_cache.preview_cache, pool)
    assert {(shape.count, weight) for shape, weight in mix.typical()} == {(n, 2500) for n in (0, 1, 2, 4)}
    real = expected(snapshot_cache.preview_cache, local_pool)
    assert {shape.cpu_milli for shape, _ in real.shapes} == {1000, 2000}


def test_built_in_mix_is_expected_without_flavors(pool):
    Flavor.objects.all().delete()
    assert expected(snapshot_cache.preview_cache, pool) == DEFAULT_MIX


def test_previews_and_cycles_learn_from_the_requests(pool, make, alice):
    before = expected(snapshot_cache.preview_cache, pool)
    assert expected(snapshot_cache.cycle_cache, pool) == before
    ask(make, alice, "sim-h100-x1", 12)
    learn_mixes()
    mix = expected(snapshot_cache.preview_cache, pool)
    assert mix == expected(snapshot_cache.cycle_cache, pool)
    assert mix != before
    popular, weight = mix.shapes[0]
    assert (popular.count, weight) == (1, max(weight for _, weight in mix.shapes))
    # The stored mix survives every process.
    rows_changed()
    assert expected(snapshot_cache.cycle_cache, pool) == mix


def test_pool_without_requests_keeps_the_mix_of_its_catalog(pool, make, alice, tmp_path):
    other = simulated_pool(str(tmp_path / "other"), slug="other")
    before = expected(snapshot_cache.preview_cache, other)
    ask(make, alice, "sim-h100-x1", 3)
    learn_mixes()
    assert expected(snapshot_cache.preview_cache, other).shapes == before.shapes


def test_scarcity_changes_weights_without_a_new_mix(pool, make, alice):
    ask(make, alice, "sim-cpu", 12)
    learning.update_mixes()
    row = LearntMix.objects.get(pool=pool)
    before = dict(expected(snapshot_cache.preview_cache, pool).scarcity)
    four = next(shape for shape in before if shape.count == 4)
    assert before[four] == (SCARCITY_ONE, SCARCITY_ONE)
    assert learning.update_mixes() == 0
    # Of eight GPUs on two nodes six are free, four of them on one.
    ask(make, alice, "sim-h100-x2", 1, first=12)
    assert learning.update_mixes() == 1
    after = dict(expected(snapshot_cache.cycle_cache, pool).scarcity)
    assert after[four] > before[four]
    assert (
        expected(snapshot_cache.preview_cache, pool).scarcity
        == expected(snapshot_cache.cycle_cache, pool).scarcity
    )
    assert LearntMix.objects.get(pool=pool).learnt_until == row.learnt_until
    assert learning.update_mixes() == 0


def test_mix_is_updated_only_after_enough_requests(pool, make, alice):
    ask(make, alice, "sim-h100-x1", 8)
    assert learning.update_mixes() == 1
    assert learning.update_mixes() == 0
    ask(make, alice, "sim-cpu", 1, first=8)
    assert learning.update_mixes() == 0
    ask(make, alice, "sim-cpu", 1, first=9)
    assert learning.update_mixes() == 1
    assert LearntMix.objects.get(pool=pool).requests == 10
    assert SnapshotChange.objects.filter(kind=ChangeKind.MIX).count() == 2


def test_changed_catalog_updates_the_mix_while_requests_are_few(pool, make, alice):
    ask(make, alice, "sim-h100-x1", 8)
    learning.update_mixes()
    Flavor.objects.filter(slug="sim-h100-x4").update(enabled=False)
    assert learning.update_mixes() == 1
    assert 4 not in {shape.count for shape, _ in expected(snapshot_cache.preview_cache, pool).shapes}


def test_unreadable_request_is_skipped(pool, make, alice):
    ask(make, alice, "sim-h100-x1", 2)
    Workspace.objects.filter(name="w0").update(resources={"cpu_milli": "many"})
    learning.update_mixes()
    assert LearntMix.objects.get(pool=pool).requests == 2
    assert expected(snapshot_cache.preview_cache, pool).shapes[0][0].count == 1


@pytest.mark.parametrize(("usual", "spared"), [(HEAVY, True), (LIGHT, False)])
def test_placement_depends_on_the_expected_requests(pool, usual, spared):
    """A light request takes cores missing for heavy ones only if heavy ones are expected."""
    with snapshot_cache.preview_cache.use() as snapshot:
        nodes = snapshot.pools[pool.pk]
        cluster = nodes.cluster
        # One node has few cores and all its GPUs, the other one GPU less and all cores.
        cores = ResourceRequest(nodes.nodes[0].cpu_milli - 40_000, 1024)
        poor = cluster.find(cores)
        cluster.commit(poor, cores)
        rich = next(node.name for node in nodes.nodes if node.name != poor.nodes[0].node)
        device = next(node for node in nodes.nodes if node.name == rich).devices[0].uuid
        cluster.commit(Placement((NodePlacement(rich, (DeviceGrant(device, 1000, 0),)),)), LIGHT)
        nodes.set_mix(RequestMix.learnt([usual] * WINDOW, []))
        assert (cluster.find(LIGHT).nodes[0].node != rich) is spared


def test_mix_survives_serialization():
    mix = RequestMix.learnt([LIGHT, HEAVY, HEAVY], [LIGHT])
    assert RequestMix.from_json(mix.as_json()) == mix
    sliced = RequestMix.of(
        [
            ResourceRequest(1, 1, accelerators=AcceleratorRequest(2, mig_profile="1g.10gb")),
            ResourceRequest(1, 1, accelerators=AcceleratorRequest(1, models=("A", "B"), share_milli=300)),
        ]
    )
    assert RequestMix.from_json(sliced.as_json()) == sliced


@pytest.mark.parametrize(("requests", "part"), [(0, 1.0), (100, 9.5 / 109.5), (1000, 5 / 1005), (2000, 0)])
def test_catalog_weighs_ten_requests_and_fades_out(requests, part):
    offered = [ResourceRequest(cpu, 1024) for cpu in (1, 2, 3)]
    mix = shapes(RequestMix.learnt([LIGHT] * requests, offered))
    total = sum(mix.values())
    assert (total - mix.get(1000, 0)) / total == pytest.approx(part)
    assert len({mix.get(cpu, 0) for cpu in (1, 2, 3)}) == 1


def test_only_the_last_two_thousand_requests_count():
    mix = RequestMix.learnt([HEAVY] * 500 + [LIGHT] * WINDOW, [HEAVY])
    assert set(shapes(mix)) == {1000}


def test_multi_node_request_is_counted_per_node():
    pair = ResourceRequest(5000, 1024, nodes=3, accelerators=AcceleratorRequest(1))
    assert shapes(RequestMix.of([pair, LIGHT])) == {5000: 3, 1000: 1}
    assert Shape.of(pair).count == 1


@pytest.mark.parametrize(
    ("known", "fresh", "again"),
    [(0, 0, False), (0, 1, True), (3, 1, True), (8, 1, False), (8, 2, True), (1000, 249, False),
     (1000, 250, True), (2000, 249, False), (2000, 250, True)],
)  # fmt: skip
def test_number_of_new_requests_for_an_update(known, fresh, again):
    assert is_learning_due(known, fresh) is again
