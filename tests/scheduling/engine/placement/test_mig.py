"""MIG: legal layouts, choice of instances, and planned repartitions."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.placement.engine import Cluster, RequestMix
from portal.scheduling.engine.placement.filters import devices
from portal.scheduling.engine.placement.mig import choose, fragmentation, with_repartition
from portal.scheduling.engine.placement.mig_layouts import geometry, reported_geometry
from portal.scheduling.engine.placement.room import devices_with_room
from portal.scheduling.engine.placement.types import DeviceCapacity, Placed
from provisioning.types import (
    AcceleratorRequest,
    DeviceKind,
    MigRepartition,
    MigSlice,
    Placement,
    ResourceRequest,
)
from tests.scheduling.engine.placement.helpers import (
    A10,
    FAILED,
    H100,
    carrier,
    gpus,
    node,
    nodes_,
    placement_of,
    reasons,
    wants,
    where,
)
from tests.suite.choice import examples

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
        ("NVIDIA H100 NVL", 95_830, {"1g.12gb": 7, "1g.24gb": 4, "2g.24gb": 3, "3g.47gb": 2, "7g.94gb": 1}),
        ("NVIDIA H100 96GB HBM3", 97_871, {"1g.12gb": 7, "1g.24gb": 4, "3g.48gb": 2, "4g.48gb": 1}),
        ("NVIDIA H20", 97_871, {"1g.12gb": 7, "2g.24gb": 3, "3g.48gb": 2, "7g.96gb": 1}),
        ("NVIDIA GH200 480GB", 97_871, {"1g.12gb": 7, "1g.24gb": 4, "2g.24gb": 3, "7g.96gb": 1}),
        ("NVIDIA GH200 144G HBM3e", 147_000, {"1g.18gb": 7, "1g.36gb": 4, "2g.36gb": 3, "3g.72gb": 2}),
        ("NVIDIA GB200", 189_471, {"1g.23gb": 7, "1g.47gb": 4, "2g.47gb": 3, "3g.93gb": 2, "4g.93gb": 1}),
        ("NVIDIA B300 SXM6 AC", 275_040, {"1g.34gb": 7, "1g.67gb": 4, "2g.67gb": 3, "3g.135gb": 2}),
        ("NVIDIA GB300", 284_208, {"1g.35gb": 7, "1g.70gb": 4, "2g.70gb": 3, "4g.139gb": 1, "7g.278gb": 1}),
        ("NVIDIA A30", 24_576, {"1g.6gb+me": 1, "2g.12gb+me": 1}),
        ("NVIDIA A100-SXM4-40GB", 40_960, {"1g.5gb+me": 1}),
        ("NVIDIA H100 80GB HBM3", 81_559, {"1g.10gb+me": 1}),
        ("NVIDIA H200", 143_771, {"1g.18gb+me": 1}),
        ("NVIDIA B200", 183_359, {"1g.23gb+me": 1}),
        ("NVIDIA B300 SXM6 AC", 275_040, {"1g.34gb+me": 1}),
    ],
)
def test_maximum_instances_per_profile_match_the_vendor(model, memory_mib, most):
    parent = carrier("p")[0]
    for profile, count in most.items():
        state = node("a", type(parent)("p", model, memory_mib, mig_mode=True))
        accelerators = AcceleratorRequest(count=count, mig_profile=profile)
        plan = choose(state, accelerators, (), repartition=True)
        assert plan is not None, profile
        assert len(plan.repartitions[0].create) == count
        more = AcceleratorRequest(count=count + 1, mig_profile=profile)
        assert choose(state, more, (), repartition=True) is None


@pytest.mark.parametrize("model", ["NVIDIA T4", "NVIDIA A10", "NVIDIA A1000"])
def test_a_model_without_mig_has_no_layout(model):
    assert geometry(model, 24_000) is None


def test_profile_names_exceed_real_memory_by_at_most_an_eighth():
    """For models of which only profile names are known."""
    known = [("NVIDIA A30", 24_576), ("NVIDIA A100", 40_960), ("NVIDIA A100", 81_920),
             ("NVIDIA H100", 81_559), ("NVIDIA H200", 143_771), ("NVIDIA B200", 183_359)]  # fmt: skip
    for model, memory_mib in known:
        layout = geometry(model, memory_mib)
        assert layout is not None
        for profile in layout.profiles:
            named_gb = int(profile.name.split(".")[1].partition("gb")[0])
            assert named_gb * 896 <= profile.memory_mib <= memory_mib


def test_media_engines_are_granted_once():
    state = node("a", *carrier("p", (f"{SMALL}+me", 0, False)))
    assert choose(state, AcceleratorRequest(count=1, mig_profile=f"{SMALL}+me"), (), repartition=True) is None
    assert choose(state, AcceleratorRequest(count=6, mig_profile=SMALL), (), repartition=True) is not None
    a30 = node(
        "a",
        DeviceCapacity("p", "NVIDIA A30", 24_576, mig_mode=True),
        DeviceCapacity("i", "NVIDIA A30", 5_900, 0, kind=DeviceKind.MIG, parent_uuid="p",
                       mig_profile="1g.6gb+me", mig_start=0),
    )  # fmt: skip
    assert choose(a30, AcceleratorRequest(count=1, mig_profile="2g.12gb+me"), (), repartition=True) is None
    assert choose(a30, AcceleratorRequest(count=1, mig_profile="2g.12gb"), (), repartition=True) is not None


def test_an_idle_instance_with_media_engines_makes_room_for_another():
    state = node("a", *carrier("p", (f"{SMALL}+me", 0, True), (SMALL, 1, False)))
    plan = choose(state, AcceleratorRequest(count=1, mig_profile=f"{SMALL}+me"), (), repartition=True)
    assert plan is not None
    assert (plan.repartitions, [grant.uuid for grant in plan.grants]) == ((), [f"p/{SMALL}+me@0"])


ODD = [
    {"name": "1g.24gb", "memory_mib": 24_000, "most": 4, "placements": [[0, 3], [3, 3], [6, 3], [9, 3]]},
    {"name": "2g.48gb", "memory_mib": 48_000, "most": 2, "placements": [[0, 6], [6, 6]]},
    {"name": "4g.96gb", "memory_mib": 96_000, "most": 1, "placements": [[0, 12]]},
    {"name": "1g.24gb+gfx", "memory_mib": 24_000, "most": 4, "placements": []},
]


def test_layout_is_planned_from_driver_placements():
    """A model outside the table, with placements in other units."""
    layout = reported_geometry(ODD)
    assert layout is not None
    assert (layout.slots, [profile.name for profile in layout.profiles]) == (
        12,
        ["1g.24gb", "2g.48gb", "4g.96gb"],
    )
    model = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert geometry(model, 97_887) is None
    parent = DeviceCapacity("p", model, 97_887, mig_mode=True, layout=layout)
    held = DeviceCapacity("i", model, 24_000, 0, kind=DeviceKind.MIG, parent_uuid="p",
                          mig_profile="1g.24gb", mig_start=3)  # fmt: skip
    plan = choose(
        node("a", parent, held), AcceleratorRequest(count=1, mig_profile="2g.48gb"), (), repartition=True
    )
    assert plan is not None
    assert plan.repartitions == (MigRepartition("p", (), (MigSlice("2g.48gb", 6),)),)


@pytest.mark.parametrize(
    "profiles",
    [
        pytest.param([], id="no profile"),
        pytest.param(None, id="nothing"),
        pytest.param([{"name": "1g.24gb"}], id="a name alone"),
        *(
            pytest.param([{**ODD[0], "placements": places}], id=f"placements {places}")
            for places in ([[0, 0]], [[-1, 3]], [[4000, 3]], [], [[0, 3], [3, 4]])
        ),
    ],
)
def test_driver_without_placements_gives_no_geometry(profiles):
    assert reported_geometry(profiles) is None


def test_fragmentation_of_the_free_slots():
    every = 0b1111_1111
    assert fragmentation(LAYOUT, every, ((SMALL, 1),)) == 1
    assert fragmentation(LAYOUT, every, ((LARGE, 1),)) == 0
    assert fragmentation(LAYOUT, 0b0111_1111, ((LARGE, 1),)) == 3
    assert fragmentation(LAYOUT, 0b0111_1110, ((LARGE, 5),)) == 30
    assert fragmentation(LAYOUT, 0, ((LARGE, 1),)) == 0


def test_idle_instance_is_used():
    state = node("a", *carrier("p", (SMALL, 0, False), (SMALL, 1, True)))
    assert where([state], wants(1, mig_profile=SMALL)) == {"a": ["p/1g.10gb@1"]}


def test_instance_keeping_the_larger_gap_free_is_chosen():
    half = carrier("p", (SMALL, 0, True), (SMALL, 4, True), (SMALL, 5, False))
    mix = RequestMix.of([wants(1, mig_profile=LARGE)])
    assert where([node("a", *half)], wants(1, mig_profile=SMALL), mix=mix) == {"a": ["p/1g.10gb@4"]}


def test_already_fragmented_gpu_is_preferred():
    whole = node("whole", *carrier("w", (SMALL, 0, True)))
    broken = node("broken", *carrier("b", (SMALL, 0, True), (SMALL, 1, False)))
    mix = RequestMix.of([wants(1, mig_profile="7g.80gb")])
    assert where([whole, broken], wants(1, mig_profile=SMALL), mix=mix) == {"broken": ["b/1g.10gb@0"]}


def test_instances_of_a_gpu_out_of_service_are_not_used():
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


def test_well_placed_idle_instance_precedes_a_new_one():
    state = node("a", *carrier("p", (SMALL, 6, True)))
    part = placement_of([state], wants(2, mig_profile=SMALL), repartition=True).nodes[0]
    assert [grant.uuid for grant in part.devices] == ["p/1g.10gb@6"]
    assert len(part.repartitions[0].create) == 1
    assert part.repartitions[0].destroy == ()


def test_new_instance_in_a_better_slot_precedes_a_badly_placed_idle_one():
    """The idle one at 0 would keep every 4g and 7g from this GPU, and one half from the 3g."""
    state = node("a", *carrier("p", (SMALL, 0, True), (SMALL, 4, False)))
    asked = wants(1, mig_profile=SMALL)
    mix = RequestMix.of([wants(1, mig_profile="4g.40gb")])
    part = placement_of([state], asked, repartition=True, mix=mix).nodes[0]
    assert part.devices == ()
    (change,) = part.repartitions
    assert change.destroy == () and change.create[0].start > 4
    # Without permission to repartition, only the idle instance can be used.
    assert where([state], asked, mix=mix) == {"a": [f"p/{SMALL}@0"]}


def test_better_slot_on_another_node_is_preferred():
    bad = node("bad", *carrier("b", (SMALL, 0, True)))
    good = node("good", *carrier("g", (SMALL, 4, False), (SMALL, 5, True)))
    mix = RequestMix.of([wants(1, mig_profile="4g.40gb")])
    for nodes in ([bad, good], [good, bad]):
        part = placement_of(nodes, wants(1, mig_profile=SMALL), repartition=True, mix=mix).nodes[0]
        assert [grant.uuid for grant in part.devices] == [f"g/{SMALL}@5"]


@given(
    st.lists(st.tuples(st.sampled_from(LAYOUT.profiles), st.integers(0, 7), st.booleans()), max_size=6),
    st.sampled_from(LAYOUT.profiles),
)
def test_chosen_slot_is_optimal_among_all_possible(pieces, profile):
    state = node("a", *carrier("p", *legal(pieces)))
    accelerators = AcceleratorRequest(count=1, mig_profile=profile.name)
    found = choose(state, accelerators, (), repartition=True)
    used = sum(
        bits_of(device.mig_profile, device.mig_start)
        for device in state.devices
        if device.kind is DeviceKind.MIG and device.free_milli == 0
    )
    free = 0b1111_1111 & ~used
    before = fragmentation(LAYOUT, free, ())
    reachable = [
        fragmentation(LAYOUT, free & ~bits, ()) - before for bits in profile.masks() if not bits & ~free
    ]
    if found is None:
        # No capacity, or the maximum number of this profile is in use.
        in_use = [device.mig_profile for device in state.devices if device.free_milli == 0]
        assert not reachable or in_use.count(profile.name) >= profile.most
    else:
        assert found.loss == min(reachable)


def test_executed_repartition_can_be_released():
    cluster = Cluster([node("a", *carrier("p", (LARGE, 0, False), (SMALL, 4, True), (SMALL, 6, True)))])
    request = wants(1, mig_profile=MEDIUM)
    placement = cluster.find(request, repartition=True)
    assert placement is not None
    (before,) = cluster.snapshot()
    after, part = with_repartition(before, placement.nodes[0])
    assert [device.uuid for device in after.devices] == ["p", f"p/{LARGE}@0", f"p/{SMALL}@6", f"p/{MEDIUM}@4"]
    cluster.update(after)
    cluster.commit(Placement((part,)), request)
    assert cluster.find(request) is None
    cluster.release(Placement((part,)), request)
    again = cluster.find(request)
    assert again is not None and again.nodes[0].devices == part.devices


def test_gpu_under_repartition_is_in_no_other_plan():
    cluster = Cluster([node("a", *carrier("p"))])
    before = cluster.snapshot()
    request = wants(1, mig_profile=SMALL)
    decision = cluster.decide(request, repartition=True)
    assert isinstance(decision, Placed)
    cluster.commit(decision.placement, request)
    assert cluster.find(request, repartition=True) is None
    with pytest.raises(ValueError, match="cannot be changed"):
        cluster.commit(decision.placement, request)
    cluster.release(decision.placement, request)
    assert cluster.snapshot() == before
    assert cluster.find(request, repartition=True) == decision.placement
    with pytest.raises(ValueError, match="cannot be changed"):
        cluster.release(decision.placement, request)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(["leave", *(profile.name for profile in LAYOUT.profiles)]), max_size=14))
def test_cached_cluster_decides_like_a_new_one_after_layout_changes(steps):
    cluster = Cluster([node("a", *carrier("p"), *carrier("q")), node("b", *carrier("r"))])
    running: list[tuple[Placement, ResourceRequest]] = []
    for step in steps:
        if step == "leave":
            if running:
                cluster.release(*running.pop(0))
            continue
        request = wants(1, mig_profile=step)
        before = {state.name: state for state in cluster.snapshot()}
        found = cluster.find(request, repartition=True)
        assert found == Cluster(list(before.values())).find(request, repartition=True)
        if found is None:
            continue
        (part,) = found.nodes
        held = {device.uuid for device in before[part.node].devices if device.free_milli == 0}
        assert not held & {uuid for change in part.repartitions for uuid in change.destroy}
        after, granted = with_repartition(before[part.node], part)
        for parent in ("p", "q", "r"):
            places = [
                bits_of(device.mig_profile, device.mig_start)
                for device in after.devices
                if device.parent_uuid == parent
            ]
            assert sum(places) == reduce(or_, places, 0), "two instances on one slot"
        cluster.update(after)
        placement = Placement((granted,))
        cluster.commit(placement, request)
        running.append((placement, request))


def bits_of(profile: str, start: int) -> int:
    found = LAYOUT.profile(profile)
    assert found is not None
    return ((1 << found.width) - 1) << start


def legal(pieces) -> list[tuple[str, int, bool]]:
    """Return the instances that can coexist on a GPU: profile, start, and whether it is free."""
    used, found = 0, []
    for piece, start, free in pieces:
        names = [name for name, _, _ in found]
        bits = bits_of(piece.name, start)
        if start in piece.starts and not bits & used and names.count(piece.name) < piece.most:
            used |= bits
            found.append((piece.name, start, free))
    return found


@given(
    st.lists(st.tuples(st.sampled_from(LAYOUT.profiles), st.integers(0, 7), st.booleans()), max_size=6),
    st.sampled_from(LAYOUT.profiles),
    st.integers(1, 4),
)
def test_every_plan_is_legal_and_keeps_instances_in_use(pieces, profile, count):
    state = node("a", *carrier("p", *legal(pieces)))
    accelerators = AcceleratorRequest(count=count, mig_profile=profile.name)
    plan = choose(state, accelerators, (), repartition=True)
    if plan is None:
        assert choose(state, accelerators, ()) is None
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


def test_counted_instances_include_possible_layouts():
    used = carrier("p", (SMALL, 0, False), (SMALL, 1, True), (MEDIUM, 2, True))
    state = node("a", *used, *carrier("q"), *gpus("plain", 1000, 1000))
    accelerators = AcceleratorRequest(count=1, mig_profile=SMALL)
    assert devices_with_room(state, accelerators) == 1
    # One of the seven of a GPU is in use.
    assert devices_with_room(state, accelerators, repartition=True) == 6 + 7
    assert devices_with_room(state, AcceleratorRequest(count=1, mig_profile=LARGE)) == 0
    # Whole GPUs and shares are not available from GPUs in MIG mode.
    assert devices_with_room(state, AcceleratorRequest(count=1)) == 2
    assert devices_with_room(state, AcceleratorRequest(count=1, model=A10)) == 0


@given(state=nodes_(most=1, bonds=False), count=st.integers(1, 4), share=st.sampled_from([250, 1000]))
def test_counted_devices_can_all_be_placed(state, count, share):
    """Whole and shared devices: one more than counted never fits."""
    accelerators = AcceleratorRequest(count=1, share_milli=share)
    for each in state:
        free = devices_with_room(each, accelerators)
        request = wants(count, share_milli=share)
        assert (devices.reason(each, request) is None) == (free >= count)
