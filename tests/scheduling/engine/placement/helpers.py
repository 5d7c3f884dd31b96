"""Builders of clusters, and generators of small random ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.engine import place
from portal.scheduling.engine.placement.types import DeviceCapacity, NodeCapacity, Placed, Unplaceable
from provisioning.types import AcceleratorRequest, DeviceKind, Placement, ResourceRequest, Within

H100, A10 = "H100", "A10"
FAILED = Reason(PlacementCode.DEVICE_UNHEALTHY, {"note": "failed its check"})
OFFLINE = Reason(PlacementCode.NODE_OFFLINE)
MEMORY = {H100: 80_000, A10: 24_000}


def gpu(uuid: str, free: int = 1000, model: str = H100, **fields) -> DeviceCapacity:
    return DeviceCapacity(uuid, model, fields.pop("memory_mib", MEMORY.get(model, 80_000)), free, **fields)


def gpus(name: str, *free: int, **fields) -> tuple[DeviceCapacity, ...]:
    """Create one device per number, with that much free."""
    return tuple(gpu(f"{name}{index}", free_milli, **fields) for index, free_milli in enumerate(free))


def node(
    name: str, *devices: DeviceCapacity, cpu: int = 64_000, memory: int = 262_144, **fields
) -> NodeCapacity:
    state = NodeCapacity(
        name=name,
        cpu_milli=64_000,
        memory_mib=262_144,
        disk_mib=100_000,
        free_cpu_milli=cpu,
        free_memory_mib=memory,
        free_disk_mib=fields.pop("disk", 100_000),
        devices=devices,
    )
    return replace(state, **fields)


def wants(count: int = 0, *, cpu: int = 1000, memory: int = 1024, **fields) -> ResourceRequest:
    outer = {name: fields.pop(name) for name in ("nodes", "labels", "needs", "disk_mib") if name in fields}
    return ResourceRequest(
        cpu_milli=cpu, memory_mib=memory, accelerators=AcceleratorRequest(count=count, **fields), **outer
    )


def placement_of(nodes, request, **options) -> Placement:
    decision = place(nodes, request, **options)
    assert isinstance(decision, Placed), decision
    return decision.placement


def where(nodes, request, **options) -> dict[str, list[str]]:
    """Return the chosen devices by node."""
    parts = placement_of(nodes, request, **options).nodes
    return {part.node: [grant.uuid for grant in part.devices] for part in parts}


def reasons(nodes, request, **options) -> list[str]:
    decision = place(nodes, request, **options)
    assert isinstance(decision, Unplaceable), decision
    assert [name for name, _ in decision.reasons] == [item.name for item in nodes]
    return [message_of(reason) for _, reason in decision.reasons]


@st.composite
def nodes_(draw, most: int = 5, *, bonds: bool = True, instances: bool = True):
    """A few nodes of few kinds, so that equal ones occur; names are unique."""
    count = draw(st.integers(0, most))
    return [_node(draw, f"n{index}", bonds=bonds, instances=instances) for index in range(count)]


def _node(draw, name: str, *, bonds: bool, instances: bool) -> NodeCapacity:
    models = draw(st.sampled_from([[], [H100], [H100] * 2, [H100] * 4, [A10] * 2, [H100, A10, A10]]))
    bonded = bonds and draw(st.booleans())
    frees = [draw(st.sampled_from([0, 250, 500, 700, 1000, 1000])) for _ in models]
    devices = [
        gpu(
            f"{name}-{index}",
            free,
            model,
            free_memory_mib=draw(st.sampled_from([-1, *_memory_left(model, free)])),
            island=draw(st.sampled_from(["", "x", "y"])) if bonded else "",
            numa=draw(st.sampled_from([-1, 0, 1])) if bonded else -1,
            unusable=draw(st.sampled_from([None, None, None, FAILED])),
        )
        for index, (model, free) in enumerate(zip(models, frees, strict=True))
    ]
    if instances and draw(st.booleans()):
        devices += _carrier(draw, f"{name}-mig")
    return node(
        name,
        *devices,
        cpu=draw(st.sampled_from([0, 4000, 16_000, 64_000])),
        memory=draw(st.sampled_from([1024, 65_536, 262_144])),
        unusable=draw(st.sampled_from([None, None, None, OFFLINE])),
        labels=draw(st.sampled_from([(), (("zone", "a"),)])),
        provides=draw(st.sampled_from([(), ("rdma",)])),
        rack=draw(st.sampled_from(["", "r1", "r2"])),
        block=draw(st.sampled_from(["", "b1"])),
    )


def _memory_left(model: str, free: int) -> list[int]:
    """Possible free memory of a device with tracked memory: all of it if it is unused."""
    whole = MEMORY[model]
    return [whole] if free == 1000 else [0, 10_000, whole * free // 1000, whole // 2]


LAYOUTS = (
    [],
    [("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)],
    [("2g.20gb", 0), ("2g.20gb", 2), ("1g.10gb", 6)],
)


def _carrier(draw, uuid: str) -> list[DeviceCapacity]:
    """A GPU in MIG mode with one of a few legal layouts."""
    return carrier(
        uuid,
        *((profile, start, draw(st.booleans())) for profile, start in draw(st.sampled_from(LAYOUTS))),
    )


def carrier(uuid: str, *instances: tuple[str, int, bool], **fields) -> list[DeviceCapacity]:
    """Create a GPU in MIG mode and its instances: profile, start, and whether it is free."""
    parent = DeviceCapacity(uuid, H100, 80_000, 1000, mig_mode=True, **fields)
    return [
        parent,
        *(
            DeviceCapacity(
                f"{uuid}/{profile}@{start}",
                H100,
                9_600,
                1000 if free else 0,
                kind=DeviceKind.MIG,
                parent_uuid=uuid,
                mig_profile=profile,
                mig_start=start,
            )
            for profile, start, free in instances
        ),
    ]


def requests_(*, nodes: int = 3, mig: bool = True):
    plain = st.builds(
        AcceleratorRequest,
        count=st.integers(0, 4),
        model=st.sampled_from(["", H100, A10]),
        share_milli=st.sampled_from([1, 250, 300, 1000, 1000]),
        memory_mib=st.sampled_from([0, 20_000, 40_000]),
        within=st.sampled_from([Within.NODE, Within.NODE, Within.NUMA, Within.ISLAND]),
    )
    sliced = st.builds(
        AcceleratorRequest, count=st.integers(1, 3), mig_profile=st.sampled_from(["1g.10gb", "2g.20gb"])
    )
    return st.builds(
        ResourceRequest,
        cpu_milli=st.sampled_from([0, 1000, 8000]),
        memory_mib=st.sampled_from([0, 2048, 32_768]),
        nodes=st.integers(1, nodes),
        accelerators=plain | sliced if mig else plain,
        labels=st.sampled_from([(), (), (("zone", "a"),)]),
        needs=st.sampled_from([(), (), ("rdma",)]),
    )
