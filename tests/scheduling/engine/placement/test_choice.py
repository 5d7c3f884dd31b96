"""The chosen node agrees with brute force and does not depend on names or order."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.scheduling.engine.placement.arrays import free_memory_mib, is_plain, mig_parents
from portal.scheduling.engine.placement.engine import Cluster, RequestMix, emptied, place
from portal.scheduling.engine.placement.mig import choose
from portal.scheduling.engine.placement.topology import bond_of
from portal.scheduling.engine.placement.types import NodeCapacity, Placed, Unplaceable
from provisioning.types import AcceleratorRequest, ResourceRequest
from tests.scheduling.engine.placement.helpers import (
    A10,
    OFFLINE,
    gpus,
    node,
    nodes_,
    requests_,
    wants,
    where,
)
from tests.suite.choice import examples

POLICIES = st.sampled_from(["fragmentation", "best_fit", "spread"])


def fits(state: NodeCapacity, request: ResourceRequest) -> bool:
    """Try every set of devices."""
    accelerators = request.accelerators
    if state.unusable or not set(request.labels) <= set(state.labels):
        return False
    if not set(request.needs) <= set(state.provides):
        return False
    if min(state.free_cpu_milli, state.free_memory_mib, state.free_disk_mib) < 0:
        return False
    if state.free_cpu_milli < request.cpu_milli or state.free_memory_mib < request.memory_mib:
        return False
    if state.free_disk_mib < request.disk_mib:
        return False
    if accelerators.count and accelerators.mig_profile:
        return choose(state, accelerators, ()) is not None
    parents = mig_parents(state)
    usable = [
        device
        for device in state.devices
        if is_plain(device, parents)
        and not device.unusable
        and device.free_milli >= accelerators.share_milli
        and accelerators.model in ("", device.model)
        and device.memory_mib >= accelerators.memory_mib
        and (
            accelerators.share_milli == 1000
            or free_memory_mib(device) >= _part(device.memory_mib, accelerators)
        )
    ]
    return any(
        accelerators.count < 2
        or (
            None not in (bonds := {bond_of(device, accelerators.within) for device in chosen})
            and len(bonds) == 1
        )
        for chosen in combinations(usable, accelerators.count)
    )


def _part(device_mib: int, accelerators: AcceleratorRequest) -> int:
    return accelerators.memory_mib or device_mib * accelerators.share_milli // 1000


@settings(max_examples=examples(300))
@given(nodes_(), requests_(), POLICIES)
def test_choice_agrees_with_brute_force_and_grants_only_free_devices(nodes, request, policy):
    fitting = {state.name for state in nodes if fits(state, request)}
    decision = place(nodes, request, policy=policy)
    if isinstance(decision, Unplaceable):
        assert len(fitting) < request.nodes
        return
    parts = decision.placement.nodes
    assert len(parts) == request.nodes
    assert {part.node for part in parts} <= fitting
    assert len({part.node for part in parts}) == request.nodes
    after = Cluster(nodes)
    after.commit(decision.placement, request)
    accelerators = request.accelerators
    by_name = {state.name: state for state in nodes}
    for part in parts:
        assert len({grant.uuid for grant in part.devices}) == len(part.devices) == accelerators.count
        known = {device.uuid: device for device in by_name[part.node].devices}
        chosen = [known[grant.uuid] for grant in part.devices]
        assert not any(device.unusable for device in chosen)
        assert all(accelerators.model in ("", device.model) for device in chosen)
        if accelerators.count > 1 and not accelerators.mig_profile:
            assert len({bond_of(device, accelerators.within) for device in chosen}) == 1


def disguised(nodes: list[NodeCapacity], seed: int) -> tuple[list[NodeCapacity], dict[str, str]]:
    """Return the same nodes with other names, UUIDs and order, and the reverse mapping."""
    chance = random.Random(seed)
    back: dict[str, str] = {}

    def alias(name: str) -> str:
        if not name:
            return name
        fresh = f"{chance.getrandbits(48):x}"
        back[fresh] = name
        return fresh

    fresh = []
    for state in nodes:
        names = {device.uuid: alias(device.uuid) for device in state.devices}
        devices = tuple(
            replace(device, uuid=names[device.uuid], parent_uuid=names.get(device.parent_uuid, ""))
            for device in state.devices
        )
        fresh.append(replace(state, name=alias(state.name), devices=devices))
    chance.shuffle(fresh)
    return fresh, back


def content(state: NodeCapacity) -> tuple[object, ...]:
    """Return the content of a node without names."""
    devices = tuple(replace(device, uuid="", parent_uuid="") for device in state.devices)
    return tuple(getattr(replace(state, name="", devices=devices), name) for name in NodeCapacity.__slots__)


@settings(max_examples=examples(200))
@given(nodes_(), requests_(nodes=1), st.integers(0, 1000), POLICIES)
def test_node_names_and_order_do_not_affect_the_choice(nodes, request, seed, policy):
    one = place(nodes, request, policy=policy)
    aliased, back = disguised(nodes, seed)
    other = place(aliased, request, policy=policy)
    assert type(one) is type(other)
    if isinstance(one, Placed) and isinstance(other, Placed):
        states = {state.name: state for state in nodes}
        first, second = one.placement.nodes[0], other.placement.nodes[0]
        # Equal nodes are interchangeable: the same kind of node with the same devices.
        assert content(states[first.node]) == content(states[back[second.node]])
        places = {state.name: [device.uuid for device in state.devices] for state in (*nodes, *aliased)}
        assert [places[first.node].index(grant.uuid) for grant in first.devices] == [
            places[second.node].index(grant.uuid) for grant in second.devices
        ]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("n0", "n1"), ("n1", "n0")])
def test_location_breaks_ties_instead_of_the_name(names):
    first, second = names
    here = node(first, *gpus(first, 1000))
    there = replace(node(second, *gpus(second, 1000)), block="b1")
    assert where([here, there], wants(1)) == {names[0]: [f"{names[0]}0"]}
    assert where([there, here], wants(1)) == {names[0]: [f"{names[0]}0"]}


@given(nodes_(), requests_(), st.randoms(use_true_random=False))
def test_snapshot_order_does_not_affect_the_choice(nodes, request, chance):
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    one, other = place(nodes, request), place(shuffled, request)
    if isinstance(one, Placed):
        assert one == other
    else:
        assert isinstance(other, Unplaceable)
        assert dict(one.reasons) == dict(other.reasons)


def test_share_is_placed_on_an_already_shared_device():
    assert where(
        [node("a", *gpus("a", 1000, 500)), node("b", *gpus("b", 1000, 1000))], wants(1, share_milli=500)
    ) == {"a": ["a1"]}


def test_empty_nodes_are_kept_for_large_requests():
    nodes = [node("big", *gpus("b", *[1000] * 8)), node("used", *gpus("u", 1000, 0, 0, 0, 0, 0, 0, 0))]
    mix = RequestMix.of([wants(8), wants(1)])
    assert where(nodes, wants(1), mix=mix) == {"used": ["u0"]}


def test_request_without_devices_avoids_nodes_with_devices():
    nodes = [node("gpu", *gpus("g", 1000)), node("plain")]
    assert where(nodes, wants(cpu=32_000)) == {"plain": []}


def test_request_for_any_model_gets_the_smaller_device_of_a_mixed_node():
    mixed = node("a", *gpus("h", 1000), *gpus("a", 1000, model=A10))
    assert where([mixed], wants(1)) == {"a": ["a0"]}
    assert where([mixed], wants(2)) == {"a": ["h0", "a0"]}


def test_best_fit_takes_the_fullest_and_spread_the_emptiest_node():
    nodes = [node("empty", *gpus("e", 1000, 1000)), node("half", *gpus("h", 1000, 600))]
    assert where(nodes, wants(1), policy="best_fit") == {"half": ["h0"]}
    assert where(nodes, wants(1, share_milli=500), policy="best_fit") == {"half": ["h1"]}
    assert where(nodes, wants(1, share_milli=500), policy="spread") == {"empty": ["e0"]}


def test_emptied_node_has_all_capacity_free():
    full = node("a", *gpus("g", 0, 250), cpu=0, memory=0, disk=0, unusable=OFFLINE)
    assert emptied(full) == replace(node("a", *gpus("g", 1000, 1000)), unusable=OFFLINE)


@given(nodes_(), requests_())
def test_request_that_fits_now_fits_empty_nodes(nodes, request):
    if isinstance(place(nodes, request), Placed):
        assert isinstance(place([emptied(state) for state in nodes], request), Placed)


def test_unknown_policy_is_refused_with_the_valid_ones():
    with pytest.raises(ValueError, match="best_fit, fragmentation, spread"):
        place([], wants(), policy="first")


@pytest.mark.parametrize(
    "request_",
    [
        wants(cpu=-1),
        wants(-1),
        wants(nodes=0),
        wants(1, share_milli=0),
        wants(1, share_milli=1001),
        wants(1, share_milli=500, mig_profile="1g.10gb"),
    ],
)
def test_invalid_request_is_refused(request_):
    with pytest.raises(ValueError, match=r"request|share|MIG"):
        place([node("a")], request_)


def test_duplicate_node_names_in_a_snapshot_are_refused():
    with pytest.raises(ValueError, match="each node once"):
        place([node("a"), node("a")], wants())
