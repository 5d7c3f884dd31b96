"""Look-up tables and arrays agree with the score definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.placement.arrays import NodeArrays
from portal.scheduling.engine.placement.cluster import weight_by_scarcity
from portal.scheduling.engine.placement.engine import DEFAULT_MIX, Cluster, RequestMix, place
from portal.scheduling.engine.placement.mix import SCARCITY_ONE, Shape
from portal.scheduling.engine.placement.scoring.fragmentation import (
    LEVELS,
    Fragmentation,
    sigmoid_thresholds,
)
from portal.scheduling.engine.placement.types import Placed
from tests.scheduling.engine.placement import reference
from tests.scheduling.engine.placement.helpers import A10, H100, gpu, gpus, node, nodes_, requests_, wants
from tests.suite.choice import examples

mixes = st.lists(requests_(nodes=1, mig=False), max_size=8).map(RequestMix.of) | st.just(DEFAULT_MIX)
EIGHT = RequestMix.of([wants(8, cpu=0, memory=0)])
HALF = RequestMix.of([wants(1, share_milli=500, cpu=4000, memory=0)])


@pytest.mark.parametrize(
    ("mix", "free", "cpu", "lost"),
    [
        (EIGHT, [1000] * 8, 64_000, 0),
        (EIGHT, [1000] * 7 + [999], 64_000, 7999),
        (EIGHT, [1000] * 4, 64_000, 4000),
        (HALF, [1000, 500, 400], 64_000, 400),
        (HALF, [400, 400], 64_000, 800),
        (HALF, [1000, 1000], 3999, 2000),
        (RequestMix.of([wants(0)]), [1000], 64_000, 0),
    ],
)
def test_fragmentation_of_a_node_equals_the_manual_calculation(mix, free, cpu, lost):
    policy = Fragmentation(NodeArrays([node("a", *gpus("g", *free), cpu=cpu)]), mix)
    assert policy.loss()[0] == lost * mix.fragmentation_weights()[1]


@settings(max_examples=examples(40))
@given(nodes_(bonds=False), mixes)
def test_tables_agree_with_the_definition(nodes, mix):
    arrays = NodeArrays(nodes)
    policy = Fragmentation(arrays, mix)
    for row, state in enumerate(arrays.states):
        devices = reference.plain(state)
        cpu, memory = state.free_cpu_milli, state.free_memory_mib
        assert policy.loss()[row] == reference.fragmentation(mix, cpu, memory, devices)
        assert policy.room()[row] == reference.room(mix, cpu, memory, devices)


@settings(max_examples=examples(100))
@given(nodes_(bonds=False, instances=False), requests_(nodes=1, mig=False), mixes)
def test_levels_agree_with_the_definition(nodes, request, mix):
    decision = place(nodes, request, mix=mix)
    if not isinstance(decision, Placed):
        return
    arrays = NodeArrays(nodes)
    part = decision.placement.nodes[0]
    row = arrays.index[part.node]
    columns = [arrays.columns[row][grant.uuid] for grant in part.devices]
    after = reference.plain(arrays.states[row])
    for column in columns:
        after[column] = (after[column][0], after[column][1] - request.accelerators.share_milli)
    rows = np.array([row])
    levels, _ = Fragmentation(arrays, mix).levels(rows, request, arrays.eligible(rows, request))
    assert abs(int(levels[0]) - reference.level(mix, arrays.states[row], request, after)) <= _rounding(
        mix, arrays.states[row], request, after
    )


def _rounding(mix, state, request, after) -> int:
    """Floating point may round a gain on the border of two levels either way."""
    exact = reference.level(mix, state, request, after)
    return 1 if exact in (LEVELS // 2, LEVELS // 2 - 1) else 0


def test_levels_are_the_floor_of_the_sigmoid():
    unit = 1_000_000
    thresholds = sigmoid_thresholds(unit)
    assert len(thresholds) == LEVELS - 1
    assert thresholds[LEVELS // 2 - 1] == 0
    for gain in range(-8 * unit, 8 * unit, 12_347):
        expected = math.floor(LEVELS / (1 + math.exp(-gain / unit)))
        assert int(np.searchsorted(thresholds, gain, "right")) == expected


def test_mix_does_not_depend_on_request_order():
    past = [wants(1), wants(2), wants(1), wants(0), wants(1, share_milli=300)]
    assert RequestMix.of(past) == RequestMix.of(reversed(past))
    assert RequestMix.of(past).shapes[0][1] == 2


def test_rare_shapes_are_left_out_of_the_mix():
    past = [wants(1)] * 198 + [wants(8)] * 2
    assert [shape.count for shape, _ in RequestMix.of(past).typical()] == [1]
    assert [shape.count for shape, _ in RequestMix.of(past[30:]).typical()] == [1, 8]


def test_shape_with_few_suitable_devices_is_scarce():
    """Of 8 free devices one is an H100; two nodes have four free, but only one of them has the cores."""
    nodes = [
        node("a", *gpus("a", *[1000] * 4, model=A10)),
        node("b", *gpus("b", *[1000] * 3, model=A10), gpu("h"), cpu=0),
    ]
    any_one, an_h100, four = wants(1, cpu=0), wants(1, cpu=0, models=(H100,)), wants(4, cpu=8000)
    nowhere, too_many = wants(1, models=("B200",)), wants(5)
    mix = RequestMix.of([any_one, an_h100, four, nowhere, too_many, wants(0)])
    found = dict(Cluster(nodes).weight_by_scarcity(mix).scarcity)
    reserve = 80

    def scarcity(usable: int) -> tuple[int, int]:
        ratio = (8000 + reserve) / (usable + reserve)
        return math.floor(SCARCITY_ONE * ratio**0.75), math.floor(SCARCITY_ONE * ratio)

    assert found == {
        Shape.of(any_one): (SCARCITY_ONE, SCARCITY_ONE),
        Shape.of(an_h100): scarcity(1000),
        Shape.of(four): scarcity(4000),
        Shape.of(nowhere): (0, 0),
        Shape.of(too_many): (0, 0),
    }


def test_scarcity_counts_all_clusters_that_expect_a_shape():
    """A request for any GPU has eight, one for an H100 has two, also in the cluster of H100s only."""
    many = Cluster([node("a", *gpus("a", *[1000] * 6, model=A10))])
    few = Cluster([node("b", *gpus("b", *[1000] * 2, model=H100))])
    any_one, an_h100, own = wants(1, cpu=0), wants(1, cpu=0, models=(H100,)), wants(2, cpu=0, models=(H100,))
    shared = RequestMix.of([any_one, an_h100])
    mixes = weight_by_scarcity([(many, shared), (few, RequestMix.of([any_one, an_h100, own]))])
    of_many, of_few = (dict(mix.scarcity) for mix in mixes)
    assert of_many[Shape.of(any_one)] == of_few[Shape.of(any_one)] == (SCARCITY_ONE, SCARCITY_ONE)
    assert of_many[Shape.of(an_h100)] == (0, 0)
    assert of_few[Shape.of(an_h100)][1] == math.floor(SCARCITY_ONE * 8080 / 2080)
    assert of_few[Shape.of(own)] == of_few[Shape.of(an_h100)]
    alone = dict(few.weight_by_scarcity(shared).scarcity)
    assert alone[Shape.of(an_h100)] == (SCARCITY_ONE, SCARCITY_ONE)


def test_scarce_shape_has_a_higher_weight():
    mix = RequestMix.of([wants(1), wants(2), wants(0)])
    one, two = Shape.of(wants(1)), Shape.of(wants(2))
    scarce = mix.with_scarcity({one: (SCARCITY_ONE, SCARCITY_ONE), two: (3 * SCARCITY_ONE, 2 * SCARCITY_ONE)})
    assert dict(scarce.fragmentation_weights()[0]) == {one: 3333 * SCARCITY_ONE, two: 3 * 3333 * SCARCITY_ONE}
    assert dict(scarce.room_weights()[0]) == {one: 5000 * SCARCITY_ONE, two: 2 * 5000 * SCARCITY_ONE}
    for weights in (RequestMix.fragmentation_weights, RequestMix.room_weights):
        assert weights(scarce)[1] == weights(mix)[1]


@given(nodes_(), mixes)
def test_scarcity_does_not_depend_on_names_or_order(nodes, mix):
    aliased = [replace(state, name=f"x{hash(state.name)}") for state in reversed(nodes)]
    assert Cluster(nodes).weight_by_scarcity(mix) == Cluster(aliased).weight_by_scarcity(mix)


def test_model_usable_by_few_requests_has_a_lower_value():
    mix = RequestMix.of([wants(1, models=(H100,))] * 9 + [wants(1)])
    arrays = NodeArrays([node("a", *gpus("a", 1000, model=A10)), node("h", *gpus("h", 1000, model=H100))])
    loss = Fragmentation(arrays, mix).loss()
    assert loss[arrays.index["a"]] > 0 == loss[arrays.index["h"]]
