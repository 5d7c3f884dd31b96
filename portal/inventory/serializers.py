"""Pools, nodes and devices as the API shows them; a pool's configuration is not: it may hold secrets."""

from __future__ import annotations

from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.inventory.models import Device, Node, Pool, PoolState


class PoolSerializer(serializers.ModelSerializer[Pool]):
    """A set of capacity under one driver."""

    state = serializers.ChoiceField(PoolState.choices)
    capabilities = serializers.ListField(child=serializers.CharField())
    node_count = serializers.IntegerField()
    online_count = serializers.IntegerField()
    device_count = serializers.IntegerField()

    class Meta:
        model = Pool
        fields = [
            *("slug", "name", "driver", "simulated", "enabled", "state", "state_message", "capabilities"),
            *("node_count", "online_count", "device_count", "inventory_at", "created_at"),
        ]
        read_only_fields = fields


class DeviceSerializer(serializers.ModelSerializer[Device]):
    """An accelerator. `used_milli` says how much of 1000 is held by workspaces."""

    pool = serializers.CharField(source="node.pool.slug")
    node = serializers.CharField(source="node.name")
    simulated = serializers.BooleanField(source="node.pool.simulated")
    used_milli = serializers.SerializerMethodField()

    class Meta:
        model = Device
        fields = [
            *("id", "uuid", "pool", "node", "index", "model", "memory_mib", "kind", "parent_uuid"),
            *("healthy", "health_note", "present", "simulated", "used_milli"),
        ]
        read_only_fields = fields

    def get_used_milli(self, device: Device) -> int:
        return getattr(device, "used_milli", None) or 0


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A host, with what workspaces hold of it."""

    pool = serializers.CharField(source="pool.slug")
    simulated = serializers.BooleanField(source="pool.simulated")
    programs = serializers.SerializerMethodField(help_text="Names of the programs that it can run.")
    warnings = serializers.ListField(child=serializers.CharField())
    used_cpu_milli = serializers.SerializerMethodField()
    used_memory_mib = serializers.SerializerMethodField()
    devices = serializers.SerializerMethodField(help_text="UUIDs of the accelerators present.")

    class Meta:
        model = Node
        fields = [
            *("id", "name", "pool", "online", "cordoned", "cpu_milli", "used_cpu_milli", "memory_mib"),
            *("used_memory_mib", "disk_mib", "devices", "isolation", "limits", "programs"),
            *("accelerator_note", "warnings", "simulated", "seen_at"),
        ]
        read_only_fields = fields

    def get_programs(self, node: Node) -> list[str]:
        return sorted(name for name, where in node.programs.items() if where)

    def get_used_cpu_milli(self, node: Node) -> int:
        return getattr(node, "used_cpu_milli", None) or 0

    def get_used_memory_mib(self, node: Node) -> int:
        return getattr(node, "used_memory_mib", None) or 0

    def get_devices(self, node: Node) -> list[str]:
        return [device.uuid for device in node.devices.all()]


class CordonSerializer(StrictSerializer):
    reason = serializers.CharField(required=False, allow_blank=True, max_length=200)
