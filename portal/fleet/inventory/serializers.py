"""REST serializers of pools, nodes and devices. Pool configurations are omitted, as they may have secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer, UserRequest
from portal.common.names import location_validator
from portal.common.scopes import Scope
from portal.fleet.inventory import counting, missing_gpus, series
from portal.fleet.inventory.contact import contact_of_node
from portal.fleet.inventory.counting import Counts
from portal.fleet.inventory.device_holders import DeviceHolder, device_holders
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.missing_gpus import MissingGpu
from portal.fleet.inventory.models import (
    CordonCause,
    Device,
    Node,
    PlacementPolicy,
    Pool,
    PoolState,
    RebalancingPolicy,
)
from portal.people.accounts.authentication import has_scope
from provisioning.gpu.samples import Sample
from provisioning.traits import AppReach, DeviceChecks, HomeStorage, Placing, Plane, SoftwareSource, Traits
from provisioning.types import LimitedResource


class CountSerializer(serializers.Serializer[Any]):
    """Amounts of one resource. MIG instances are counted instead of the GPU that they partition."""

    resource = serializers.CharField(
        help_text="Resource, such as `gpu:h100`, `gpu`, `mig:1g.10gb` or `cpu_milli`."
    )
    total = serializers.IntegerField(
        help_text="Total amount in any state, in base units: thousandths of a device or core, or MiB."
    )
    in_service = serializers.IntegerField(help_text="Amount in service: not failed, cordoned or offline.")
    allocated = serializers.IntegerField(help_text="Amount allocated to workspaces.")
    free = serializers.IntegerField(
        help_text="Amount in service that is neither allocated nor being checked."
    )


def count_rows(counts: Counts) -> list[dict[str, Any]]:
    """Return counts in the form of `CountSerializer`, sorted by resource."""
    return [
        {
            "resource": name,
            "total": count.total,
            "in_service": count.in_service,
            "allocated": count.allocated,
            "free": count.free,
        }
        for name, count in sorted(counts.items())
    ]


class TraitsSerializer(serializers.Serializer[Traits]):
    """Traits declared by the pool's driver, such as supported operations."""

    plane = serializers.ChoiceField(
        [each.value for each in Plane],
        help_text="Who runs its commands: each node's worker, or any worker that reaches the engine.",
    )
    placing = serializers.ChoiceField(
        [each.value for each in Placing],
        help_text="Who chooses nodes and devices. With `engine`, workspaces wait in the engine's own queue.",
    )
    homes = serializers.ChoiceField(
        [each.value for each in HomeStorage], help_text="Where home folders are kept."
    )
    software = serializers.ChoiceField(
        [each.value for each in SoftwareSource],
        help_text="Where programs and environments come from; `none`: nothing runs.",
    )
    reach = serializers.ChoiceField(
        [each.value for each in AppReach], help_text="How the portal reaches the app of a workspace."
    )
    device_checks = serializers.ChoiceField(
        [each.value for each in DeviceChecks], help_text="How devices are checked, scrubbed and reset."
    )
    measured = serializers.BooleanField(help_text="Whether nodes send measurements.")
    limits_egress = serializers.BooleanField(help_text="Whether egress policies are enforced.")
    limits_homes = serializers.BooleanField(help_text="Whether home limits are enforced.")


class PoolSerializer(serializers.ModelSerializer[Pool]):
    """Capacity managed by one driver."""

    state = serializers.ChoiceField(PoolState.choices)
    traits = TraitsSerializer(read_only=True, help_text="What its driver declares.")
    capabilities = serializers.ListField(child=serializers.CharField(), help_text="Capabilities of the pool.")
    node_count = serializers.IntegerField(help_text="Number of nodes.")
    online_count = serializers.IntegerField(help_text="Number of nodes that are online.")
    device_count = serializers.IntegerField(
        help_text="Number of devices. A partitioned GPU counts as its MIG instances."
    )
    resources = serializers.SerializerMethodField(
        help_text="Capacity and allocation of its nodes, by resource."
    )
    used_by_others = serializers.DictField(
        child=serializers.IntegerField(),
        read_only=True,
        help_text="Units in use by jobs of others at an engine that places workspaces itself, by model.",
    )

    class Meta:
        model = Pool
        fields = [
            *("slug", "name", "driver", "simulated", "enabled", "state", "state_message"),
            *("traits", "capabilities"),
            *("node_count", "online_count", "device_count", "resources", "used_by_others"),
            *("inventory_at", "created_at"),
            *("placement_policy", "rebalancing", "retiring", "updated_at"),
        ]
        read_only_fields = fields

    @extend_schema_field(CountSerializer(many=True))
    def get_resources(self, pool: Pool) -> list[dict[str, Any]]:
        # Count all pools of a response together.
        context: dict[str, Any] = self.context  # type: ignore[assignment]
        if "counts" not in context:
            shown: Any = self.root.instance
            pools = [shown] if isinstance(shown, Pool) else shown
            context["counts"] = counting.counts_by_pool(
                Node.objects.filter(pool__in=[row.pk for row in pools])
            )
        return count_rows(context["counts"].get(pool.pk, {}))


def _config() -> serializers.DictField:
    return serializers.DictField(required=False, help_text="Settings of the driver, by name. Never returned.")


class PoolChangeSerializer(StrictSerializer):
    """Fields of a pool that can be changed."""

    name = serializers.CharField(max_length=80)
    config = _config()
    placement_policy = serializers.ChoiceField(
        PlacementPolicy.choices,
        required=False,
        help_text="Whether to pack work onto few nodes or spread it over all.",
    )
    rebalancing = serializers.ChoiceField(
        RebalancingPolicy.choices,
        required=False,
        help_text="Whether running work moves to better places; `site` uses the site's setting.",
    )
    enabled = serializers.BooleanField(required=False)
    retiring = serializers.BooleanField(
        required=False,
        help_text=(
            "Whether the pool is being emptied: it accepts no new workspaces, and running ones continue."
        ),
    )

    examples = {"config": {"sandbox": "gvisor"}}


class PoolCreateSerializer(StrictSerializer):
    """A new pool."""

    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=80)
    driver = serializers.CharField(max_length=40, help_text="Driver of the pool: `local` or `simulated`.")
    config = _config()

    examples = {"config": {"sandbox": "gvisor"}, "driver": "local"}


@dataclass(frozen=True, slots=True)
class _Uses:
    holders: Mapping[UUID, Sequence[DeviceHolder]]
    samples: Mapping[str, Sample]
    idle_times: Mapping[UUID, int]


class DeviceHolderSerializer(serializers.Serializer[DeviceHolder]):
    """A workspace that holds the device, or a share of it.

    If you may not see the workspace, or your token lacks `workspaces:read`, only `share_milli` is set.
    """

    workspace_id = serializers.UUIDField(allow_null=True, help_text="Id of the workspace; null if hidden.")
    workspace = serializers.CharField(help_text="Name of the workspace; empty if hidden.")
    owner = serializers.CharField(help_text="Username of its owner; empty if hidden.")
    share_milli = serializers.IntegerField(
        source="milli", help_text="Share allocated to the workspace, in thousandths."
    )
    since = serializers.DateTimeField(
        allow_null=True, help_text="When the device was allocated; null if hidden."
    )


class DeviceSerializer(serializers.ModelSerializer[Device]):
    """An accelerator. `used_milli` is the part of 1000 allocated to workspaces.

    `state` is the most severe state that applies. `idle`: allocated, but measured without activity for 15
    minutes; unmeasured time counts as use. `offline`: its node does not report it, or its pool is disabled.
    While the node or its pool is silent (`reachable` is false), a failed, cordoned or allocated device keeps
    its last known state, and the others are `offline`.
    """

    pool = serializers.CharField(source="node.pool.slug")
    node = serializers.CharField(source="node.name")
    simulated = serializers.BooleanField(source="node.pool.simulated")
    used_milli = serializers.SerializerMethodField(help_text="Allocated share of the device, in thousandths.")
    state = serializers.ChoiceField([state.value for state in DeviceState])
    reachable = serializers.BooleanField(
        source="heard", help_text="Whether its node reports. If not, `state` is the last known one."
    )
    partitioned = serializers.BooleanField(
        help_text=(
            "Whether it is partitioned into MIG instances. Then its instances are allocated and counted "
            "instead of the GPU."
        )
    )
    holders = serializers.SerializerMethodField(help_text="Who holds it, oldest first; empty if it is free.")
    gpu_pct = serializers.SerializerMethodField(
        help_text="GPU utilization now, in percent; null if not measured."
    )
    idle_s = serializers.SerializerMethodField(
        help_text="Current idle time of the GPU in seconds. Unmeasured time counts as use."
    )
    cordon_cause = serializers.ChoiceField(
        CordonCause.choices, allow_blank=True, help_text="Cause of the cordon."
    )
    recovery = serializers.CharField(help_text="What returns it to service; empty if nothing has to be done.")
    warning = serializers.CharField(
        help_text="Warning of the last check that does not take it out of service; empty for none."
    )
    checking = serializers.BooleanField(
        help_text="Whether a check or scrub uses it or its links. No work is placed on it meanwhile."
    )
    kept_back = serializers.BooleanField(
        help_text=(
            "Whether a share was released. New shares start after all others have ended and the memory is "
            "scrubbed."
        )
    )
    passed_at = serializers.DateTimeField(allow_null=True, help_text="When it last passed a check.")
    mig_start = serializers.IntegerField(help_text="First memory slice; -1 if unknown.")
    numa = serializers.IntegerField(help_text="NUMA node; -1 if unknown.")
    island = serializers.CharField(help_text="NVLink island on its node; empty for none.")
    facts = serializers.JSONField(help_text="Other facts from the inventory, by name.")

    class Meta:
        model = Device
        fields = [
            *("id", "uuid", "pool", "node", "index", "model", "memory_mib", "kind", "parent_uuid"),
            *("state", "reachable", "healthy", "health_note", "present", "simulated", "used_milli"),
            *("holders", "gpu_pct", "idle_s"),
            *("partitioned", "cordoned", "cordon_reason", "cordon_cause", "recovery", "warning"),
            *("checking", "kept_back", "passed_at"),
            *("mig_mode", "mig_profile", "mig_start", "compute_capability", "numa", "island", "facts"),
        ]
        read_only_fields = fields

    def get_used_milli(self, device: Device) -> int:
        return getattr(device, "used_milli", None) or 0

    @extend_schema_field(DeviceHolderSerializer(many=True))
    def get_holders(self, device: Device) -> Any:
        holders: Any = self._uses.holders.get(device.pk, ())
        return DeviceHolderSerializer(holders, many=True).data

    def get_gpu_pct(self, device: Device) -> int | None:
        sample = self._uses.samples.get(device.uuid)
        return None if sample is None else sample.gpu_util_pct

    def get_idle_s(self, device: Device) -> int:
        return self._uses.idle_times.get(device.pk, 0)

    @property
    def _uses(self) -> _Uses:
        """The allocations and use of all devices in the response, read once."""
        context: dict[str, Any] = self.context  # type: ignore[assignment]
        if "uses" not in context:
            shown: Any = self.root.instance
            devices = [shown] if isinstance(shown, Device) else list(shown)
            keys, now = [device.pk for device in devices], timezone.now()
            context["uses"] = _Uses(
                _holders(context["request"], keys),
                series.current_samples(devices, now=now),
                series.idle_times(now, devices=keys),
            )
        return context["uses"]


def _holders(request: UserRequest, devices: Collection[UUID]) -> Mapping[UUID, Sequence[DeviceHolder]]:
    """Return the allocations of these devices. A token for pools alone shows no workspaces."""
    held = device_holders().of_devices(request.user, devices)
    if has_scope(request, Scope.WORKSPACES_READ):
        return held
    return {device: [DeviceHolder(holder.milli) for holder in holders] for device, holders in held.items()}


class MissingGpuSerializer(serializers.Serializer[MissingGpu]):
    """A GPU that the node should have but its driver does not report."""

    pci_bus_id = serializers.CharField(help_text="Current or last PCI address, such as `0000:3b:00.0`.")
    uuid = serializers.CharField(help_text="UUID of the GPU; empty if it was never seen.")
    model = serializers.CharField(help_text="Model of the GPU; empty if it was never seen.")
    on_pci = serializers.BooleanField(help_text="Whether the node still lists it on PCI.")
    next_action = serializers.CharField(help_text="First thing to do, as a sentence.")


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A host with its capacity and allocation."""

    pool = serializers.CharField(source="pool.slug")
    simulated = serializers.BooleanField(source="pool.simulated")
    online = serializers.SerializerMethodField(
        help_text="Whether it reports. If not, the other values are those of `seen_at`."
    )
    programs = serializers.SerializerMethodField(help_text="Names of the programs that it can run.")
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="Warnings that do not block its use."
    )
    limited = serializers.ListField(
        child=serializers.ChoiceField([resource.value for resource in LimitedResource]),
        help_text="Resource limits that apply to workspaces on it.",
    )
    used_cpu_milli = serializers.SerializerMethodField(help_text="Allocated CPU, in thousandths of a core.")
    used_memory_mib = serializers.SerializerMethodField(help_text="Allocated memory in MiB.")
    devices = serializers.SerializerMethodField(help_text="UUIDs of the accelerators present.")
    missing_gpus = serializers.SerializerMethodField(
        help_text=(
            "GPUs that the node should have, by its PCI devices and earlier inventories, but does not report."
        )
    )
    resources = serializers.SerializerMethodField(help_text="Capacity and allocation by resource.")
    accelerator_state = serializers.CharField(
        help_text="State of its accelerators, such as `ok`, `no_driver` or `gpu_lost`; empty if unknown."
    )
    provides = serializers.ListField(
        child=serializers.CharField(),
        help_text="Features that requests can require, such as `rdma` or `memory_tier:cxl`.",
    )
    labels = serializers.DictField(
        child=serializers.CharField(), help_text="Labels that the operator has set."
    )
    facts = serializers.JSONField(
        help_text=(
            "Other facts from the inventory, such as processor, NUMA nodes and RDMA. `pressure` has, "
            "for `cpu`, `memory` and `io`, the percentage of the last minute in which a process waited "
            "for it; null if the kernel does not report it. `headroom` has the free capacity over "
            "`watched_s` seconds, in percent: `cpu_idle`, `cpu_waited` (a process waited for CPU), "
            "`memory_left` (maximum) and `memory_stalled` (all processes waited for memory), and the "
            "number of `runnable` processes for its `cores`."
        )
    )

    class Meta:
        model = Node
        fields = [
            *("id", "name", "pool", "online", "cordoned", "cordon_reason", "cpu_milli", "used_cpu_milli"),
            *("memory_mib", "used_memory_mib", "disk_mib", "devices", "isolation", "limits", "limited"),
            *("programs", "driver_version", "cuda_version", "accelerator_state", "accelerator_note"),
            "missing_gpus",
            *(
                "warnings",
                "provides",
                "labels",
                "rack",
                "block",
                "facts",
                "simulated",
                "resources",
                "seen_at",
            ),
        ]
        read_only_fields = fields

    @extend_schema_field(CountSerializer(many=True))
    def get_resources(self, node: Node) -> list[dict[str, Any]]:
        return count_rows(counting.node_counts(node))

    @extend_schema_field(MissingGpuSerializer(many=True))
    def get_missing_gpus(self, node: Node) -> list[dict[str, Any]]:
        missing = missing_gpus.missing_gpus_of(node, node.devices.all())
        return [dict(MissingGpuSerializer(gpu).data) for gpu in missing]

    def get_online(self, node: Node) -> bool:
        return contact_of_node(node).heard

    def get_programs(self, node: Node) -> list[str]:
        return sorted(name for name, where in node.programs.items() if where)

    def get_used_cpu_milli(self, node: Node) -> int:
        return getattr(node, "used_cpu_milli", None) or 0

    def get_used_memory_mib(self, node: Node) -> int:
        return getattr(node, "used_memory_mib", None) or 0

    def get_devices(self, node: Node) -> list[str]:
        return [device.uuid for device in node.devices.all() if device.present]


def _location(what: str) -> serializers.CharField:
    return serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=63,
        validators=[location_validator],
        help_text=f"Name of the {what}; empty if unknown.",
    )


class NodeChangeSerializer(StrictSerializer):
    """Fields of a node that can be changed."""

    rack = _location("rack")
    block = _location("block of racks")

    examples = {"rack": "r07", "block": "b1"}


class CordonSerializer(StrictSerializer):
    note = serializers.CharField(required=False, allow_blank=True, max_length=200)
