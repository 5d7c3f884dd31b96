"""REST serializers of pools, nodes and devices. Pool configurations are omitted, as they may have secrets."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.fleet.inventory import counting, missing_gpus
from portal.fleet.inventory.counting import Counts
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
from provisioning.types import LimitedResource


class CountSerializer(serializers.Serializer[Any]):
    """Amounts of one resource. MIG instances are counted instead of the GPU that they partition."""

    resource = serializers.CharField(help_text="`gpu:h100`, `gpu`, `mig:1g.10gb`, `cpu_milli`, …")
    total = serializers.IntegerField(
        help_text="In base units: thousandths of a device or core, MiB. Whatever its state."
    )
    in_service = serializers.IntegerField(help_text="Neither failed nor cordoned nor offline.")
    allocated = serializers.IntegerField(help_text="Held by workspaces.")
    free = serializers.IntegerField(help_text="In service, under no check, held by nobody.")


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


class PoolSerializer(serializers.ModelSerializer[Pool]):
    """Capacity managed by one driver."""

    state = serializers.ChoiceField(PoolState.choices)
    capabilities = serializers.ListField(child=serializers.CharField(), help_text="Capabilities of the pool.")
    node_count = serializers.IntegerField(help_text="Number of nodes.")
    online_count = serializers.IntegerField(help_text="Number of nodes that are online.")
    device_count = serializers.IntegerField(help_text="A partitioned GPU counts as its MIG instances.")
    resources = serializers.SerializerMethodField(
        help_text="Capacity and allocation of its nodes, by resource."
    )

    class Meta:
        model = Pool
        fields = [
            *("slug", "name", "driver", "simulated", "enabled", "state", "state_message", "capabilities"),
            *("node_count", "online_count", "device_count", "resources", "inventory_at", "created_at"),
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
            context["counts"] = counting.by_pool(Node.objects.filter(pool__in=[row.pk for row in pools]))
        return count_rows(context["counts"].get(pool.pk, {}))


def _config() -> serializers.DictField:
    return serializers.DictField(
        required=False, help_text="The driver's own settings, by name. No answer has them."
    )


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
        help_text="Whether running work is moved to better places; `site`: as the site's settings say.",
    )
    enabled = serializers.BooleanField(required=False)
    retiring = serializers.BooleanField(
        required=False, help_text="Nothing new is placed there; what runs goes on."
    )

    examples = {"config": {"sandbox": "gvisor"}}


class PoolCreateSerializer(StrictSerializer):
    """A new pool."""

    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=80)
    driver = serializers.CharField(max_length=40, help_text="`local` or `simulated`.")
    config = _config()

    examples = {"config": {"sandbox": "gvisor"}, "driver": "local"}


class DeviceSerializer(serializers.ModelSerializer[Device]):
    """An accelerator. `used_milli` is the part of 1000 allocated to workspaces.

    `state` is the most severe state that applies. `idle`: allocated, but measured without activity for 15
    minutes; unmeasured time counts as use. `offline`: its node does not report it or is offline, or its pool
    is unreachable or disabled.
    """

    pool = serializers.CharField(source="node.pool.slug")
    node = serializers.CharField(source="node.name")
    simulated = serializers.BooleanField(source="node.pool.simulated")
    used_milli = serializers.SerializerMethodField(help_text="Allocated share of the device, in thousandths.")
    state = serializers.ChoiceField([state.value for state in DeviceState])
    partitioned = serializers.BooleanField(
        help_text="It is partitioned into MIG instances: these are allocated and counted, it is not."
    )
    cordon_cause = serializers.ChoiceField(
        CordonCause.choices, allow_blank=True, help_text="Who took it out of placement."
    )
    recovery = serializers.CharField(help_text="What brings it back; empty where nothing has to be done.")
    warning = serializers.CharField(
        help_text="What a check holds against it that does not keep it from work."
    )
    checking = serializers.BooleanField(
        help_text="A check or a scrub is on it, or a check measures the link to it: nothing is placed on it."
    )
    kept_back = serializers.BooleanField(
        help_text=("A share was released. New shares start after all others end and the memory is scrubbed.")
    )
    passed_at = serializers.DateTimeField(allow_null=True, help_text="When it last passed a check.")
    mig_start = serializers.IntegerField(help_text="First memory slice; -1: unknown.")
    numa = serializers.IntegerField(help_text="NUMA node; -1: unknown.")
    island = serializers.CharField(help_text="NVLink island on its node; empty: none.")
    facts = serializers.JSONField(help_text="What else inventory knows; by name.")

    class Meta:
        model = Device
        fields = [
            *("id", "uuid", "pool", "node", "index", "model", "memory_mib", "kind", "parent_uuid"),
            *("state", "healthy", "health_note", "present", "simulated", "used_milli"),
            *("partitioned", "cordoned", "cordon_reason", "cordon_cause", "recovery", "warning"),
            *("checking", "kept_back", "passed_at"),
            *("mig_mode", "mig_profile", "mig_start", "compute_capability", "numa", "island", "facts"),
        ]
        read_only_fields = fields

    def get_used_milli(self, device: Device) -> int:
        return getattr(device, "used_milli", None) or 0


class MissingGpuSerializer(serializers.Serializer[MissingGpu]):
    """A GPU that the node should have but its driver does not report."""

    pci_bus_id = serializers.CharField(help_text="Where it is, or was: `0000:3b:00.0`.")
    uuid = serializers.CharField(help_text="Empty where it was never seen before.")
    model = serializers.CharField(help_text="Empty where it was never seen before.")
    on_pci = serializers.BooleanField(help_text="The node has it on PCI all the same.")
    next_action = serializers.CharField(help_text="What to do first, in a sentence.")


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A host with its capacity and allocation."""

    pool = serializers.CharField(source="pool.slug")
    simulated = serializers.BooleanField(source="pool.simulated")
    programs = serializers.SerializerMethodField(help_text="Names of the programs that it can run.")
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="Warnings that do not block its use."
    )
    limited = serializers.ListField(
        child=serializers.ChoiceField([resource.value for resource in LimitedResource]),
        help_text="What a workspace there is held to.",
    )
    used_cpu_milli = serializers.SerializerMethodField(help_text="Allocated CPU, in thousandths of a core.")
    used_memory_mib = serializers.SerializerMethodField(help_text="Allocated memory in MiB.")
    devices = serializers.SerializerMethodField(help_text="UUIDs of the accelerators present.")
    missing_gpus = serializers.SerializerMethodField(
        help_text="GPUs that it ought to have, by its PCI and by what it had before, and does not show."
    )
    resources = serializers.SerializerMethodField(help_text="Capacity and allocation by resource.")
    accelerator_state = serializers.CharField(help_text="`ok`, `no_driver`, `gpu_lost`, …; empty: unknown.")
    provides = serializers.ListField(
        child=serializers.CharField(), help_text="What requests may need: `rdma`, `memory_tier:cxl`, …"
    )
    labels = serializers.DictField(
        child=serializers.CharField(), help_text="Labels that the operator has set."
    )
    facts = serializers.JSONField(
        help_text=(
            "What else inventory knows: processor, NUMA nodes, RDMA, … `pressure` has for `cpu`, `memory` "
            "and `io` the percent of the last minute in which something on the machine waited for it; "
            "null where the kernel does not tell. `headroom` has what is left there, in percent over "
            "`watched_s` seconds: `cpu_idle`, `cpu_waited` (something waited for CPU), `runnable` processes "
            "for its `cores`, `memory_left` at most, `memory_stalled` (all waited for memory)."
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
        return count_rows(counting.of_node(node))

    @extend_schema_field(MissingGpuSerializer(many=True))
    def get_missing_gpus(self, node: Node) -> list[dict[str, Any]]:
        missing = missing_gpus.of_node(node, node.devices.all())
        return [dict(MissingGpuSerializer(gpu).data) for gpu in missing]

    def get_programs(self, node: Node) -> list[str]:
        return sorted(name for name, where in node.programs.items() if where)

    def get_used_cpu_milli(self, node: Node) -> int:
        return getattr(node, "used_cpu_milli", None) or 0

    def get_used_memory_mib(self, node: Node) -> int:
        return getattr(node, "used_memory_mib", None) or 0

    def get_devices(self, node: Node) -> list[str]:
        return [device.uuid for device in node.devices.all() if device.present]


class CordonSerializer(StrictSerializer):
    note = serializers.CharField(required=False, allow_blank=True, max_length=200)
