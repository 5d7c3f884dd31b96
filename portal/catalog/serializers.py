"""Templates, flavors and sizes as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog.models import Bond, Flavor, Template, WorkLost


class AcceleratorsSerializer(serializers.Serializer[Any]):
    """Accelerators on each node; `share_milli` is 1000 for whole ones, `within` what several must share."""

    count = serializers.IntegerField()
    model = serializers.CharField(allow_blank=True)
    share_milli = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    mig_profile = serializers.CharField(default="", allow_blank=True)
    within = serializers.ChoiceField(Bond.choices, default=Bond.NODE)


class ResourcesSerializer(serializers.Serializer[Any]):
    """What is held on each node, in integers of the units named."""

    cpu_milli = serializers.IntegerField()
    memory_mib = serializers.IntegerField()
    disk_mib = serializers.IntegerField()
    nodes = serializers.IntegerField()
    accelerators = AcceleratorsSerializer()

    def to_representation(self, held: Mapping[str, Any]) -> dict[str, Any]:
        accelerators = held["accelerators"]
        return {
            "cpu_milli": held["cpu_milli"],
            "memory_mib": held["memory_mib"],
            "disk_mib": held["disk_mib"],
            "nodes": held["nodes"],
            "accelerators": {
                "count": accelerators["count"],
                "model": accelerators["model"],
                "share_milli": accelerators["share_milli"],
                "memory_mib": accelerators["memory_mib"],
                # Kept only where they say more than this.
                "mig_profile": accelerators.get("mig_profile", ""),
                "within": accelerators.get("within", Bond.NODE.value),
            },
        }


class TemplateSerializer(serializers.ModelSerializer[Template]):
    """What can be run. Where no node has its program, `available` is false and `reason` says so."""

    min_compute_capability = serializers.CharField(
        read_only=True, help_text="The least that a device must have; empty is any."
    )
    # The names of these two before 2026-11, kept for clients that read them.
    cuda_version = serializers.CharField(
        source="min_cuda", read_only=True, help_text="The same as `min_cuda`."
    )
    compute_capability = serializers.CharField(
        source="min_compute_capability", help_text="The same as `min_compute_capability`."
    )
    available = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField()
    next_action = serializers.SerializerMethodField()

    class Meta:
        model = Template
        fields = [
            *("slug", "name", "description", "icon", "program", "min_cuda", "min_compute_capability"),
            *("cuda_version", "compute_capability", "open_path", "start_timeout_s"),
            *("stop_timeout_s", "work_lost", "service_workers", "available", "reason", "next_action"),
        ]
        read_only_fields = fields

    def get_available(self, template: Template) -> bool:
        return not self._offer(template)[0]

    def get_reason(self, template: Template) -> str:
        return self._offer(template)[0]

    def get_next_action(self, template: Template) -> str:
        return self._offer(template)[1]

    def _offer(self, template: Template) -> tuple[str, str]:
        offers: dict[str, tuple[str, str]] = self.context["offers"]
        return offers.get(template.slug, ("", ""))


class FlavorSerializer(serializers.ModelSerializer[Flavor]):
    """How big. With `pool` it can be had only there."""

    resources = serializers.SerializerMethodField()
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    simulated = serializers.BooleanField(help_text="Whether nothing real runs behind it.")
    work_lost = serializers.ChoiceField(
        WorkLost.choices,
        allow_blank=True,
        help_text="When work of this size is lost if it has to make room; empty is as the template says.",
    )

    class Meta:
        model = Flavor
        fields = ["slug", "name", "description", "resources", "pool", "simulated", "work_lost"]
        read_only_fields = fields

    @extend_schema_field(ResourcesSerializer)
    def get_resources(self, flavor: Flavor) -> dict[str, Any]:
        return flavor.as_request()
