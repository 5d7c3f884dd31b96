"""A snapshot of nodes as integer arrays, so that one decision considers thousands of nodes at once.

Nodes are ordered by block, rack and a digest of their names, so that neither the order of the snapshot nor
that of the names matters. Devices keep the order of their node. The arrays contain devices that are allocated
whole or in shares; `mig` handles MIG instances and their GPUs.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from portal.common.home_load import relative_load
from portal.common.reasons.reason import Reason
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.types import (
    HOME_LABELS,
    DeviceCapacity,
    NodeCapacity,
    NodeSoftware,
    software_of,
)
from provisioning.gpu.shares import part_mib
from provisioning.types import WHOLE_DEVICE_MILLI, AcceleratorRequest, DeviceKind, ResourceRequest

CHANGING = Reason(PlacementCode.DEVICE_CHECKING)
"""Why a GPU is unusable while its MIG layout changes."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Traits = tuple[tuple[tuple[str, str], ...], tuple[str, ...], NodeSoftware]


def digest(name: str) -> bytes:
    """Return a digest of a name, for an order that does not depend on the names."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def is_plain(device: DeviceCapacity, parents: frozenset[str]) -> bool:
    """Return whether the device is granted directly, not as MIG instances."""
    return device.kind is not DeviceKind.MIG and not device.mig_mode and device.uuid not in parents


def mig_parents(node: NodeCapacity) -> frozenset[str]:
    """Return the UUIDs of the GPUs that have MIG instances on this node."""
    return frozenset(device.parent_uuid for device in node.devices if device.kind is DeviceKind.MIG)


def free_memory_mib(device: DeviceCapacity) -> int:
    """Return free device memory in MiB, in proportion to free milli-GPUs if memory is not tracked."""
    if device.free_memory_mib >= 0:
        return device.free_memory_mib
    return device.memory_mib * device.free_milli // WHOLE_DEVICE_MILLI


def granted_mib(device: DeviceCapacity, accelerators: AcceleratorRequest) -> int:
    """Return the device memory in MiB that a request takes: for a share without an amount, its proportion.

    Returns 0 for a whole device, and for a share without an amount if memory is not tracked, because only
    milli-GPUs are limited then.
    """
    if accelerators.share_milli >= WHOLE_DEVICE_MILLI:
        return 0
    if device.free_memory_mib < 0:
        return accelerators.memory_mib
    return part_mib(device.memory_mib, accelerators.share_milli, accelerators.memory_mib)


class NodeArrays:
    """Nodes by row, their devices by column. Absent and unusable devices have nothing free."""

    def __init__(self, nodes: Sequence[NodeCapacity]) -> None:
        self.position = {node.name: place for place, node in enumerate(nodes)}
        if len(self.position) != len(nodes):
            raise ValueError("a snapshot names each node once")
        # On a tie the first node wins: nodes of a rack come together, then by digest.
        self.states = sorted(nodes, key=lambda node: (node.block, node.rack, digest(node.name)))
        self.index = {node.name: row for row, node in enumerate(self.states)}
        self.devices = [self._plain_devices(node) for node in self.states]
        self.columns = [
            {device.uuid: column for column, device in enumerate(devices)} for devices in self.devices
        ]
        self.classes = sorted({_class(device) for devices in self.devices for device in devices})
        class_index = {item: place for place, item in enumerate(self.classes)}
        traits = {_traits(node): None for node in self.states}
        self.traits: list[Traits] = list(traits)
        trait_index = {item: place for place, item in enumerate(self.traits)}
        width = max((len(devices) for devices in self.devices), default=0) or 1
        count = len(self.states)
        self.width = width
        self.free_cpu = np.zeros(count, np.int64)
        self.free_memory = np.zeros(count, np.int64)
        self.free_disk = np.zeros(count, np.int64)
        # Home load of each node, in 1/1000 of the node's capacity.
        self.home_load = np.zeros(count, np.int64)
        self.usable = np.zeros(count, np.bool_)
        self.home_rows: dict[tuple[str, str], list[int]] = {}
        for row, node in enumerate(self.states):
            for label in node.labels:
                if label[0] in HOME_LABELS:
                    self.home_rows.setdefault(label, []).append(row)
        self.trait = np.array([trait_index[_traits(node)] for node in self.states], np.int64)
        self.device_class = np.zeros((count, width), np.int64)
        self.present = np.zeros((count, width), np.bool_)
        self.warned = np.zeros((count, width), np.bool_)
        self.free_milli = np.zeros((count, width), np.int64)
        self.free_device_memory = np.zeros((count, width), np.int64)
        for row, devices in enumerate(self.devices):
            if devices:
                kinds = [class_index[_class(device)] for device in devices]
                # Absent columns repeat the first class, so that nodes of one model count as uniform.
                self.device_class[row, :] = kinds[0]
                self.device_class[row, : len(kinds)] = kinds
        self.uniform = bool((self.device_class == self.device_class[:, :1]).all())
        self.class_memory = np.array([memory for memory, _ in self.classes] or [0], np.int64)
        self.bonded = np.array(
            [any(device.island or device.numa >= 0 for device in devices) for devices in self.devices],
            np.bool_,
        )
        self.bare = np.array([not node.devices for node in self.states], np.bool_)
        self.with_mig = np.array([_has_mig(node) for node in self.states], np.bool_)
        self.peer_group = self._peers()
        for row in range(count):
            self.load(row)

    def __len__(self) -> int:
        return len(self.states)

    @staticmethod
    def _plain_devices(node: NodeCapacity) -> list[DeviceCapacity]:
        parents = mig_parents(node)
        return [device for device in node.devices if is_plain(device, parents)]

    def _peers(self) -> list[int]:
        """Return the peer group of each node: nodes of the same build share a number."""
        builds = [
            (
                node.cpu_milli,
                node.memory_mib,
                node.disk_mib,
                tuple(sorted(_class(device) for device in self.devices[row])),
                bool(self.with_mig[row]),
                _traits(node),
            )
            for row, node in enumerate(self.states)
        ]
        number = {build: place for place, build in enumerate(sorted(set(builds)))}
        return [number[build] for build in builds]

    def load(self, row: int) -> None:
        """Load the free amounts of `states[row]`."""
        node = self.states[row]
        self.free_cpu[row] = node.free_cpu_milli
        self.free_memory[row] = node.free_memory_mib
        self.free_disk[row] = node.free_disk_mib
        least = min(node.free_cpu_milli, node.free_memory_mib, node.free_disk_mib)
        self.usable[row] = node.unusable is None and least >= 0
        self.home_load[row] = _home_load(node)
        current = {device.uuid: device for device in node.devices}
        for column, previous in enumerate(self.devices[row]):
            device = self.devices[row][column] = current[previous.uuid]
            self.present[row, column] = True
            self.warned[row, column] = device.warned
            self.free_milli[row, column] = 0 if device.unusable else device.free_milli
            self.free_device_memory[row, column] = 0 if device.unusable else free_memory_mib(device)

    def same_build(self, row: int, node: NodeCapacity) -> bool:
        """Return whether `node` differs from the loaded state only in free amounts and MIG layouts."""
        old = self.states[row]
        return (
            replace(node, devices=()) == replace(
                old, devices=(), free_cpu_milli=node.free_cpu_milli, free_memory_mib=node.free_memory_mib,
                free_disk_mib=node.free_disk_mib, unusable=node.unusable,
                home_gpu_milli=node.home_gpu_milli, home_cpu_milli=node.home_cpu_milli,
            )
            and sorted(map(_build, self._plain_devices(node)))
            == sorted(map(_build, self._plain_devices(old)))
            and _has_mig(node) == _has_mig(old)
        )  # fmt: skip

    def take(
        self, row: int, *, cpu_milli: int, memory_mib: int, disk_mib: int, restored: bool = False
    ) -> None:
        """Subtract from the free amounts (or add, if negative). Raises ValueError beyond the bounds."""
        node = self.states[row]
        moves = (
            (self.free_cpu, cpu_milli, node.cpu_milli),
            (self.free_memory, memory_mib, node.memory_mib),
            (self.free_disk, disk_mib, node.disk_mib),
        )
        left = [int(free[row]) - amount for free, amount, _ in moves]
        for rest, (_, amount, total) in zip(left, moves, strict=True):
            if (amount > 0 and rest < 0 and not restored) or (amount < 0 and rest > total):
                raise ValueError(f"{node.name}: more than is free, or more given back than the node has")
        for rest, (free, _, _) in zip(left, moves, strict=True):
            free[row] = rest
        self.usable[row] = node.unusable is None and min(left) >= 0

    def take_device(
        self, row: int, column: int, milli: int, memory_mib: int, *, restored: bool = False
    ) -> None:
        """Subtract a share of a device (or add it, if negative). Raises ValueError beyond the bounds.

        `restored` is as in `take`, for device memory.
        """
        device = self.devices[row][column]
        tracked = -1 if device.free_memory_mib < 0 else int(self.free_device_memory[row, column])
        free = int(self.free_milli[row, column])
        free, memory = _subtract(device, free, tracked, milli, memory_mib, restored=restored)
        self.free_milli[row, column] = free
        if memory < 0:
            memory = device.memory_mib * free // WHOLE_DEVICE_MILLI
        self.free_device_memory[row, column] = memory

    def take_outside_arrays(
        self, row: int, uuid: str, milli: int, memory_mib: int, *, restored: bool = False
    ) -> None:
        """Take from a device outside the arrays: a MIG instance, or one that is unusable."""
        node = self.states[row]
        for place, device in enumerate(node.devices):
            handed_out = device.kind is DeviceKind.MIG or uuid in self.columns[row]
            if device.uuid == uuid and handed_out:
                free, memory = _subtract(
                    device, device.free_milli, device.free_memory_mib, milli, memory_mib, restored=restored
                )
                left = replace(device, free_milli=free, free_memory_mib=memory)
                devices = (*node.devices[:place], left, *node.devices[place + 1 :])
                self.states[row] = replace(node, devices=devices)
                return
        raise ValueError(f"{node.name} has no device {uuid} to hand out")

    def take_home(self, row: int, gpu_milli: int, cpu_milli: int) -> None:
        """Add the average use of a home's owner to the node (or subtract it, if negative)."""
        node = self.states[row]
        node = self.states[row] = replace(
            node,
            home_gpu_milli=node.home_gpu_milli + gpu_milli,
            home_cpu_milli=node.home_cpu_milli + cpu_milli,
        )
        self.home_load[row] = _home_load(node)

    def hold_gpus(self, row: int, uuids: Sequence[str], hold: bool) -> None:
        """Make GPUs in MIG mode unusable while their layout changes, or usable again. Raises ValueError."""
        node = self.states[row]
        gpus = {device.uuid: device for device in node.devices if device.uuid in uuids}
        if len(gpus) != len(uuids) or any((device.unusable == CHANGING) is hold for device in gpus.values()):
            raise ValueError(f"{node.name}: these GPUs' MIG layouts cannot be changed, or are not: {uuids}")
        if hold and any(device.unusable for device in gpus.values()):
            raise ValueError(f"{node.name}: one of these GPUs is out of use: {uuids}")
        reason = CHANGING if hold else None
        devices = tuple(
            replace(device, unusable=reason) if device.uuid in gpus else device for device in node.devices
        )
        self.states[row] = replace(node, devices=devices)

    def state(self, row: int) -> NodeCapacity:
        """Return the node with its current free amounts."""
        node = self.states[row]
        columns = self.columns[row]
        devices = tuple(
            device
            if (column := columns.get(device.uuid)) is None or device.unusable
            else self._device(device, row, column)
            for device in node.devices
        )
        return replace(
            node,
            free_cpu_milli=int(self.free_cpu[row]),
            free_memory_mib=int(self.free_memory[row]),
            free_disk_mib=int(self.free_disk[row]),
            devices=devices,
        )

    def _device(self, device: DeviceCapacity, row: int, column: int) -> DeviceCapacity:
        free_milli = int(self.free_milli[row, column])
        counted = device.free_memory_mib >= 0
        free_memory = int(self.free_device_memory[row, column]) if counted else device.free_memory_mib
        if (free_milli, free_memory) == (device.free_milli, device.free_memory_mib):
            # Most devices of a changed node are unchanged.
            return device
        return replace(device, free_milli=free_milli, free_memory_mib=free_memory)

    def class_mask(self, models: Iterable[str], memory_mib: int) -> Bools:
        """Return which device classes have one of the `models` (empty: any) and enough memory."""
        allowed = frozenset(models)
        mask = [(not allowed or model in allowed) and memory >= memory_mib for memory, model in self.classes]
        return np.array(mask or [False], np.bool_)

    def labels_mask(self, labels: Iterable[tuple[str, str]]) -> Bools:
        """Return which combinations of traits have all labels. The labels must not include a home label."""
        named = set(labels)
        return np.array([named <= set(labels) for labels, _, _ in self.traits], np.bool_)

    def needs_mask(self, request: ResourceRequest) -> Bools:
        """Return which combinations of traits meet the software requirements of the request."""
        needs, software = set(request.needs), software_of(request)
        return np.array(
            [needs <= set(provides) and has.meets(software) for _, provides, has in self.traits], np.bool_
        )

    def eligible(self, rows: Ints, request: ResourceRequest) -> Bools:
        """Return which devices have room for their share of the request."""
        accelerators = request.accelerators
        takes_whole = accelerators.share_milli >= WHOLE_DEVICE_MILLI
        free: Bools = self.free_milli[rows] >= accelerators.share_milli
        if not takes_whole:
            parts = [
                part_mib(memory, accelerators.share_milli, accelerators.memory_mib)
                for memory, _ in self.classes
            ]
            free &= self.free_device_memory[rows] >= np.array(parts or [0], np.int64)[self.device_class[rows]]
        if accelerators.allowed_models or accelerators.memory_mib:
            suits = self.class_mask(accelerators.allowed_models, accelerators.memory_mib)
            free &= suits[self.device_class[rows]]
        return free

    def preferred(self, rows: Ints, request: ResourceRequest) -> tuple[Bools, Bools]:
        """Return the eligible devices to choose from, and the nodes with enough devices without a warning.

        On these nodes, devices with a warning are left out.
        """
        eligible = self.eligible(rows, request)
        healthy = eligible & ~self.warned[rows]
        enough: Bools = healthy.sum(axis=1) >= request.accelerators.count
        healthy |= eligible & ~enough[:, None]
        return healthy, enough

    def contents(self, rows: Ints) -> Ints:
        """Return everything that affects the score of eligible nodes, one row per node."""
        return np.concatenate(
            (
                self.free_cpu[rows, None],
                self.free_memory[rows, None],
                self.bare[rows, None],
                self.device_class[rows],
                self.free_milli[rows],
                self.free_device_memory[rows],
                self.warned[rows],
            ),
            axis=1,
            dtype=np.int64,
        )

    def usage_key(self, row: int) -> int:
        """Return a key that orders peers from the fullest to the emptiest, independent of names."""
        free: list[int] = self.free_milli[row].tolist()
        free.sort()
        rest = (int(self.free_cpu[row]), int(self.free_memory[row]), int(self.free_disk[row]))
        return (sum(free) << 32) | zlib.crc32(b"%d %d %d " % rest + bytes(str(free), "ascii"))


def _subtract(
    device: DeviceCapacity, free: int, memory: int, milli: int, memory_mib: int, *, restored: bool
) -> tuple[int, int]:
    """Return the remaining free milli-GPUs and memory (-1: not tracked). Raises ValueError beyond the bounds.

    If more memory is allocated than the device has, none is free: a release frees at most the device's size,
    and with `restored`, 0 is left.
    """
    left = free - milli
    rest = memory if memory < 0 else min(memory - memory_mib, device.memory_mib)
    if memory >= 0 and restored:
        rest = max(0, rest)
    if not 0 <= left <= WHOLE_DEVICE_MILLI or (memory >= 0 and not 0 <= rest <= device.memory_mib):
        raise ValueError(f"device {device.uuid} has no {milli} milli and {memory_mib} MiB to move")
    return left, rest


def _home_load(node: NodeCapacity) -> int:
    """Return the share of the node's devices or cores that its homes need, the larger one, in 1/1000."""
    if not (node.home_gpu_milli or node.home_cpu_milli):
        return 0
    parents = mig_parents(node)
    devices = sum(device.uuid not in parents for device in node.devices)
    return relative_load(
        node.home_gpu_milli, node.home_cpu_milli, devices=devices, node_cpu_milli=node.cpu_milli
    )


def _class(device: DeviceCapacity) -> tuple[int, str]:
    return (device.memory_mib, device.model)


def _traits(node: NodeCapacity) -> Traits:
    """Return the traits of a node that matter to requests, except its homes, which differ on each node."""
    labels = (label for label in node.labels if label[0] not in HOME_LABELS)
    return (tuple(sorted(labels)), tuple(sorted(node.provides)), node.software)


def _has_mig(node: NodeCapacity) -> bool:
    return any(device.kind is DeviceKind.MIG or device.mig_mode for device in node.devices)


def _build(device: DeviceCapacity) -> tuple[object, ...]:
    tracked = device.free_memory_mib >= 0
    return (device.uuid, device.model, device.memory_mib, device.kind, device.parent_uuid, device.mig_mode,
            device.mig_profile, device.mig_start, device.island, device.numa, tracked)  # fmt: skip
