"""REST serializers of machines and join tokens."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.fleet.machines.conditions import Condition, condition_of, notes_of
from portal.fleet.machines.models import JoinToken, Machine
from portal.fleet.machines.services import MAX_REASON


class MachineSerializer(serializers.ModelSerializer[Machine]):
    """A machine that has joined a pool."""

    pool = serializers.CharField(source="pool.slug")
    node = serializers.UUIDField(
        source="node_id", allow_null=True, help_text="Name of the node of the machine."
    )
    condition = serializers.SerializerMethodField(help_text="Most important current condition.")
    notes = serializers.SerializerMethodField(help_text="Notes about the machine, as sentences.")
    gateway = serializers.SerializerMethodField(
        help_text="Gateway address of its workspaces, as `host:port`."
    )
    placed = serializers.IntegerField(help_text="Number of workspaces placed on the machine.")

    class Meta:
        model = Machine
        fields = [
            *("id", "name", "pool", "node", "state", "condition", "notes", "gateway", "version", "placed"),
            *("clock_off_s", "certificate_expires_at", "joined_at", "rotated_at", "heard_at", "cloned_at"),
            "ended_at",
        ]
        read_only_fields = fields
        extra_kwargs = {
            "clock_off_s": {"help_text": "Clock offset in seconds; positive if ahead of the portal."},
            "cloned_at": {"help_text": "When a second machine with its identity was last seen."},
        }

    @extend_schema_field(serializers.ChoiceField([condition.value for condition in Condition]))
    def get_condition(self, machine: Any) -> str:
        return condition_of(machine, timezone.now()).value

    def get_notes(self, machine: Any) -> list[str]:
        return notes_of(machine, timezone.now())

    def get_gateway(self, machine: Any) -> str:
        return machine.gateway


class MachineNoteSerializer(StrictSerializer):
    note = serializers.CharField(
        max_length=MAX_REASON,
        required=False,
        allow_blank=True,
        default="",
        help_text="Note for the audit log.",
    )


class JoinTokenSerializer(serializers.ModelSerializer[JoinToken]):
    """An unused join token for one machine."""

    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = JoinToken
        fields = ["id", "created_by", "created_at", "expires_at"]
        read_only_fields = fields


class NewJoinTokenSerializer(serializers.Serializer[Any]):
    """A new join token. `token` and `command` are shown only once."""

    id = serializers.UUIDField(source="token.pk")
    token = serializers.CharField(source="text", help_text="The token. Shown only once.")
    command = serializers.CharField(help_text="Command to run on the machine that joins.")
    expires_at = serializers.DateTimeField(source="token.expires_at")
