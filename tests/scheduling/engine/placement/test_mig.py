"""MIG: legal layouts, which instance is given, and planning another layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.mig import choose, fragmentation, geometry
from portal.scheduling.engine.placement.types import Placed
from provisioning.types import AcceleratorRequest, DeviceKind, MigRepartition, MigSlice
from tests.scheduling.engine.placement.helpers import (
    FAILED,
    H100,
    carrier,
    node,
    placement_of,
    reasons,
    wants,
    where,
)

SMALL, MEDIUM, LARGE = "1g.10gb", "2g.20gb", "3g.40gb"
LAYOUT = geometry(H100, 80_000)
assert LAYOUT is not None


@pytest.mark.parametrize(
    ("model", "memory_mib", "most"),
    [
        ("NVIDIA A30", 24_576, {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1}),
        (
            "NVIDIA A100-SXM4-40GB",
            40_960,
            {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1},
        ),
        ("NVIDIA A100-SXM4-80GB", 81_920, {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "7g.80gb": 1}),
        ("NVIDIA H100 80GB HBM3", 81_559, {"1g.10gb": 7, "1g.20gb": 4, "3g.40gb": 2, "4g.40gb": 1}),
        ("NVIDIA H200", 143_771, {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "7g.141gb": 1}),
        ("NVIDIA B200", 183_359, {"1g.23gb": 7, "1g.45gb": 4, "2g.45gb": 3}),
    ],
)
def test_as_many_instances_as_the_vendor_says(model, memory_mib, most):
    parent = carrier("p")[0]
    for profile, count in most.items():
        state = node("a", type(parent)("p", model, memory_mib, mig_mode=True))
        wanted = AcceleratorRequest(count=count, mig_profile=profile)
        plan = choose(state, wanted, (), repartition=True)
        assert plan is not None, profile
        assert len(plan.repartitions[0].create) == count
        more = AcceleratorRequest(count=count + 1, mig_profile=profile)
        assert choose(state, more, (), repartition=True) is None


@pytest.mark.parametrize("model", ["NVIDIA T4", "NVIDIA A10", "NVIDIA A1000"])
def test_a_model_without_mig_has_no_layout(model):
    assert geometry(model, 24_000) is None


def test_fragmentation_of_the_free_slots():
    every = 0b1111_1111
    assert fragmentation(LAYOUT, every, ((SMALL, 1),)) == 1
    assert fragmentation(LAYOUT, every, ((LARGE, 1),)) == 0
    assert fragmentation(LAYOUT, 0b0111_1111, ((LARGE, 1),)) == 3
    assert fragmentation(LAYOUT, 0b0111_1110, ((LARGE, 5),)) == 30
    assert fragmentation(LAYOUT, 0, ((LARGE, 1),)) == 0


def test_an_idle_instance_is_given():
    state = node("a", *carrier("p", (SMALL, 0, False), (SMALL, 1, True)))
    assert where([state], wants(1, mig_profile=SMALL)) == {"a": ["p/1g.10gb@1"]}


def test_the_instance_that_leaves_the_larger_gap_whole():
    half = carrier("p", (SMALL, 0, True), (SMALL, 4, True), (SMALL, 5, False))
    mix = RequestMix.of([wants(1, mig_profile=LARGE)])
    assert where([node("a", *half)], wants(1, mig_profile=SMALL), mix=mix) == {"a": ["p/1g.10gb@4"]}


def test_the_gpu_that_is_broken_into_already():
    whole = node("whole", *carrier("w", (SMALL, 0, True)))
    broken = node("broken", *carrier("b", (SMALL, 0, True), (SMALL, 1, False)))
    mix = RequestMix.of([wants(1, mig_profile="7g.80gb")])
    assert where([whole, broken], wants(1, mig_profile=SMALL), mix=mix) == {"broken": ["b/1g.10gb@0"]}


def test_instances_of_a_gpu_out_of_service_are_not_given():
    state = node("a", *carrier("p", (SMALL, 0, True), unusable=FAILED))
    assert reasons([state], wants(1, mig_profile=SMALL)) == ["0 of 1 × 1g.10gb free, needs 1 on one node"]


def test_another_layout_is_planned_only_when_allowed():
    state = node("a", *carrier("p", (LARGE, 0, False), (SMALL, 4, True), (SMALL, 6, True)))
    request = wants(1, mig_profile=MEDIUM)
    assert reasons([state], request) == [
        "has no MIG instance 2g.20gb; another MIG layout of p would make room"
    ]
    part = placement_of([state], request, repartition=True).nodes[0]
    assert part.devices == ()
    assert part.repartitions == (MigRepartition("p", ("p/1g.10gb@4",), (MigSlice(MEDIUM, 4),)),)


def test_a_layout_in_use_is_not_changed():
    state = node("a", *carrier("p", (SMALL, 1, False), (SMALL, 3, False), (SMALL, 5, False)))
    assert reasons([state], wants(1, mig_profile=MEDIUM), repartition=True) == ["has no MIG instance 2g.20gb"]


def test_free_slots_are_used_before_idle_instances_are_destroyed():
    crowded = node("crowded", *carrier("c", *((SMALL, slot, True) for slot in range(7))))
    roomy = node("roomy", *carrier("r", (LARGE, 0, True)))
    part = placement_of([crowded, roomy], wants(1, mig_profile=MEDIUM), repartition=True).nodes[0]
    assert part.node == "roomy"
    assert part.repartitions == (MigRepartition("r", (), (MigSlice(MEDIUM, 4),)),)


def test_idle_instances_are_given_before_new_ones_are_made():
    state = node("a", *carrier("p", (SMALL, 0, True)))
    part = placement_of([state], wants(2, mig_profile=SMALL), repartition=True).nodes[0]
    assert [grant.uuid for grant in part.devices] == ["p/1g.10gb@0"]
    assert len(part.repartitions[0].create) == 1
    assert part.repartitions[0].destroy == ()


def test_a_plan_is_not_committed_before_it_is_carried_out():
    cluster = Cluster([node("a", *carrier("p"))])
    request = wants(1, mig_profile=SMALL)
    decision = cluster.decide(request, repartition=True)
    assert isinstance(decision, Placed)
    with pytest.raises(ValueError, match="change the MIG layout first"):
        cluster.commit(decision.placement, request)


@given(
    st.lists(st.tuples(st.sampled_from(LAYOUT.profiles), st.integers(0, 7), st.booleans()), max_size=6),
    st.sampled_from(LAYOUT.profiles),
    st.integers(1, 4),
)
def test_every_plan_is_a_legal_layout_and_spares_those_in_use(pieces, profile, count):
    used, existing = 0, []
    for piece, start, free in pieces:
        bits = ((1 << piece.width) - 1) << start
        if start in piece.starts and not bits & used:
            used |= bits
            existing.append((piece.name, start, free))
    state = node("a", *carrier("p", *existing))
    wanted = AcceleratorRequest(count=count, mig_profile=profile.name)
    plan = choose(state, wanted, (), repartition=True)
    if plan is None:
        assert choose(state, wanted, ()) is None
        return
    created = [piece for change in plan.repartitions for piece in change.create]
    destroyed = {uuid for change in plan.repartitions for uuid in change.destroy}
    granted = {grant.uuid for grant in plan.grants}
    assert len(granted) + len(created) == count
    assert not granted & destroyed
    taken = 0
    for device in state.devices:
        if device.kind is DeviceKind.MIG:
            assert device.uuid not in destroyed or device.free_milli == 1000
            if device.uuid not in destroyed:
                found = LAYOUT.profile(device.mig_profile)
                taken |= ((1 << found.width) - 1) << device.mig_start
    for piece in created:
        assert piece.start in profile.starts
        bits = ((1 << profile.width) - 1) << piece.start
        assert not bits & taken
        taken |= bits
