"""Placement: a pure function; it never grants what is not free, and says why it does not place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.engine import emptied, place
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity, Placed, Unplaceable
from provisioning.types import AcceleratorRequest, ResourceRequest

H100, A10 = "NVIDIA H100", "NVIDIA A10"
OFFLINE = Reason(PlacementCode.NODE_OFFLINE)


def device(uuid: str, free: int = 1000, model: str = H100, memory_mib: int = 80_000) -> DeviceCapacity:
    return DeviceCapacity(uuid, model, memory_mib, free)


def node(
    name: str, *devices: DeviceCapacity, cpu: int = 8000, memory: int = 16_384, **fields
) -> NodeCapacity:
    return NodeCapacity(
        name=name,
        cpu_milli=8000,
        memory_mib=16_384,
        disk_mib=1000,
        free_cpu_milli=cpu,
        free_memory_mib=memory,
        free_disk_mib=fields.pop("disk", 1000),
        devices=devices,
        **fields,
    )


def wants(
    count: int = 0, *, cpu: int = 1000, memory: int = 1024, nodes: int = 1, **fields
) -> ResourceRequest:
    return ResourceRequest(
        cpu_milli=cpu,
        memory_mib=memory,
        disk_mib=fields.pop("disk", 0),
        nodes=nodes,
        accelerators=AcceleratorRequest(count=count, **fields),
    )


def placed(nodes, request) -> dict[str, list[str]]:
    decision = place(nodes, request)
    assert isinstance(decision, Placed), decision
    return {part.node: [grant.uuid for grant in part.devices] for part in decision.placement.nodes}


def reasons(nodes, request) -> list[str]:
    decision = place(nodes, request)
    assert isinstance(decision, Unplaceable), decision
    assert [name for name, _ in decision.reasons] == [item.name for item in nodes]
    return [message_of(reason) for _, reason in decision.reasons]


def test_no_nodes_no_place():
    assert place([], wants()) == Unplaceable(())


def test_a_request_without_devices_gets_none():
    assert placed([node("a", device("g0"))], wants()) == {"a": []}


def test_the_fullest_node_that_fits_is_taken():
    a = node("a", device("a0"), device("a1"))
    b = node("b", device("b0", free=0), device("b1"))
    assert placed([a, b], wants(1)) == {"b": ["b1"]}
    assert placed([a, b], wants(2)) == {"a": ["a0", "a1"]}


def test_work_without_devices_keeps_away_from_them():
    assert placed([node("gpu", device("g")), node("plain")], wants()) == {"plain": []}


def test_a_share_goes_on_the_device_that_is_in_use_already():
    shared = node("a", device("whole"), device("half", free=500))
    assert placed([shared], wants(1, share_milli=500)) == {"a": ["half"]}
    assert placed([shared], wants(1, share_milli=600)) == {"a": ["whole"]}


def test_only_the_model_that_is_asked_for():
    mixed = node("a", device("x", model=A10), device("y"))
    assert placed([mixed], wants(1, model=H100)) == {"a": ["y"]}
    assert placed([mixed], wants(1)) in ({"a": ["x"]}, {"a": ["y"]})


def test_enough_memory_on_the_device():
    assert placed([node("a", device("s", memory_mib=10), device("l"))], wants(1, memory_mib=1000)) == {
        "a": ["l"]
    }


def test_all_nodes_at_once_or_none():
    nodes = [node(name, device(f"{name}0"), device(f"{name}1")) for name in "abc"]
    got = placed(nodes, wants(2, nodes=2))
    assert len(got) == 2
    assert all(len(devices) == 2 for devices in got.values())
    assert reasons(nodes, wants(2, nodes=4)) == ["fits, but 4 nodes are needed and 3 fit"] * 3


def test_every_reason():
    assert reasons([node("a", unusable=OFFLINE)], wants()) == ["is offline"]
    assert reasons([node("a", cpu=500)], wants(cpu=1500)) == ["0.5 of 8 CPU cores free, needs 1.5"]
    assert reasons([node("a", memory=512)], wants(memory=2048)) == ["0.5 of 16 GiB memory free, needs 2"]
    assert reasons([node("a", disk=0)], wants(disk=2048)) == ["0 GiB disk free, needs 2"]
    assert reasons([node("a")], wants(1)) == ["has no accelerator"]
    assert reasons([node("a", device("x", model=A10))], wants(1, model=H100)) == ["has no NVIDIA H100"]
    assert reasons([node("a", device("x", free=0), device("y"))], wants(2, model=H100)) == [
        "1 of 2 × NVIDIA H100 free, needs 2 on one node"
    ]


def test_an_emptied_node_has_everything_free():
    full = node("a", device("x", free=0), cpu=0, memory=0, disk=0, unusable=OFFLINE)
    empty = emptied(full)
    assert (empty.free_cpu_milli, empty.free_memory_mib, empty.free_disk_mib) == (8000, 16_384, 1000)
    assert [item.free_milli for item in empty.devices] == [1000]
    assert empty.unusable == OFFLINE


devices = st.builds(
    DeviceCapacity,
    uuid=st.uuids().map(str),
    model=st.sampled_from([H100, A10]),
    memory_mib=st.sampled_from([24_000, 80_000]),
    free_milli=st.sampled_from([0, 1, 250, 500, 999, 1000]),
)
nodes_ = st.builds(
    NodeCapacity,
    name=st.uuids().map(str),
    cpu_milli=st.just(8000),
    memory_mib=st.just(16_384),
    disk_mib=st.just(1000),
    free_cpu_milli=st.integers(-10, 8000),
    free_memory_mib=st.integers(-10, 16_384),
    free_disk_mib=st.integers(-10, 1000),
    devices=st.lists(devices, max_size=4).map(tuple),
    unusable=st.sampled_from([None, None, None, OFFLINE]),
)
requests = st.builds(
    ResourceRequest,
    cpu_milli=st.integers(1, 9000),
    memory_mib=st.integers(1, 17_000),
    disk_mib=st.integers(0, 1100),
    nodes=st.integers(1, 3),
    accelerators=st.builds(
        AcceleratorRequest,
        count=st.integers(0, 4),
        model=st.sampled_from(["", H100]),
        share_milli=st.sampled_from([1, 250, 1000]),
        memory_mib=st.sampled_from([0, 40_000]),
    ),
)


@given(st.lists(nodes_, max_size=5), requests)
def test_what_is_granted_was_free_and_is_what_was_asked_for(nodes, request):
    decision = place(nodes, request)
    if isinstance(decision, Unplaceable):
        assert [name for name, _ in decision.reasons] == [item.name for item in nodes] or request.nodes > 1
        assert sorted(name for name, _ in decision.reasons) == sorted(item.name for item in nodes)
        assert all(reason for _, reason in decision.reasons)
        return
    by_name = {item.name: item for item in nodes}
    parts = decision.placement.nodes
    assert len({part.node for part in parts}) == len(parts) == request.nodes
    for part in parts:
        on = by_name[part.node]
        assert not on.unusable
        assert on.free_cpu_milli >= request.cpu_milli
        assert on.free_memory_mib >= request.memory_mib
        assert on.free_disk_mib >= request.disk_mib or not request.disk_mib
        wanted = request.accelerators
        free = {item.uuid: item for item in on.devices}
        assert len({grant.uuid for grant in part.devices}) == len(part.devices) == wanted.count
        for grant in part.devices:
            assert grant.milli == wanted.share_milli <= free[grant.uuid].free_milli
            assert wanted.model in ("", free[grant.uuid].model)
            assert free[grant.uuid].memory_mib >= wanted.memory_mib


@given(st.lists(nodes_, max_size=5), requests)
def test_what_fits_now_fits_when_all_is_empty(nodes, request):
    if isinstance(place(nodes, request), Placed):
        assert isinstance(place([emptied(item) for item in nodes], request), Placed)


@given(st.lists(nodes_, max_size=5, unique_by=lambda item: item.name), requests, st.randoms())
def test_the_order_of_nodes_decides_nothing(nodes, request, random):
    shuffled = list(nodes)
    random.shuffle(shuffled)
    one, other = place(nodes, request), place(shuffled, request)
    if isinstance(one, Placed):
        assert one == other
    else:
        assert isinstance(other, Unplaceable)
