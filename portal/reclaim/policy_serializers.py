"""Serializers of reclaim policies."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.catalog.models import MAX_LIFETIME_H
from portal.common.api import StrictSerializer
from portal.reclaim import policy_documents as documents
from portal.reclaim.engine.week import DAYS
from portal.reclaim.models import MAX_DAYS, MAX_MINUTES, MAX_NOTICE_MINUTES, ReclaimPolicy

TARGET = "`site`, or kind and short name: `pool:…`, `template:…`, `flavor:…`, `team:…`."


def _limit(most: int, help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=most, allow_null=True, required=False, help_text=help_text
    )


class ReclaimPolicyValuesSerializer(StrictSerializer):
    """The values of a policy. Null inherits; a limit of 0 disables."""

    idle_minutes = _limit(MAX_MINUTES, "Without work, for workspaces without accelerators.")
    idle_gpu_minutes = _limit(MAX_MINUTES, "Without work, for workspaces with accelerators.")
    gpu_unused_minutes = _limit(MAX_MINUTES, "With all GPUs at 0 %, whatever else goes on.")
    release_gpu_minutes = _limit(
        MAX_MINUTES,
        "Without work, after which accelerators are released and the app restarts without them, instead of "
        "being stopped.",
    )
    longest_hours = _limit(MAX_LIFETIME_H, "The longest life, extensions included.")
    notice_minutes = _limit(MAX_NOTICE_MINUTES, "The least notice before any stop; not for teams.")
    archive_days = _limit(
        MAX_DAYS, "Without use, after which home folders are archived and emptied; of site, pools and teams."
    )
    delete_days = _limit(
        MAX_DAYS, "In an archive, after which an administrator may delete a home folder; of site and pools."
    )
    stop_when_spent = serializers.BooleanField(
        allow_null=True,
        required=False,
        help_text="Stop what has accelerators once the team's GPU-hours are spent.",
    )
    zone = serializers.CharField(
        max_length=64, allow_blank=True, required=False, help_text="Time zone, as `Europe/Berlin`."
    )
    days = serializers.ListField(
        child=serializers.ChoiceField(DAYS), max_length=7, required=False, help_text="Working days, as `mon`."
    )
    work_from = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="Start of the working hours, as `08:00`; null for no schedule.",
    )
    work_until = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="End of the working hours, as `18:00`; null for no schedule.",
    )
    after_hours_minutes = _limit(MAX_MINUTES, "Without work outside the hours of work; a shorter limit only.")
    stop_at = serializers.TimeField(
        allow_null=True, required=False, format="%H:%M", help_text="Stops what is not used at this hour."
    )
    start_at = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="Starts at this hour what `stop_at` has stopped, on `days` but not on holidays.",
    )
    holidays = serializers.ListField(
        child=serializers.DateField(),
        max_length=documents.MAX_HOLIDAYS,
        required=False,
        help_text="Days on which nobody works.",
    )

    examples = {
        "idle_minutes": 240,
        "idle_gpu_minutes": 60,
        "release_gpu_minutes": 45,
        "longest_hours": 72,
        "notice_minutes": 15,
        "zone": "Europe/Berlin",
        "after_hours_minutes": 30,
        "holidays": ["2026-12-25"],
    }

    def validate_holidays(self, value: list[Any]) -> list[str]:
        return [holiday.isoformat() for holiday in value]


class ReclaimPolicyCreateSerializer(ReclaimPolicyValuesSerializer):
    """A policy to create or preview."""

    examples = {"for": "flavor:a100-full"}

    def get_fields(self) -> dict[str, Any]:
        target = serializers.CharField(max_length=100, help_text=TARGET)
        return {"for": target, **super().get_fields()}


class ReclaimPolicySerializer(serializers.ModelSerializer[ReclaimPolicy]):
    """A policy. `for` is its target."""

    work_from = serializers.TimeField(
        allow_null=True,
        format="%H:%M",
        help_text="Start of the working hours, as `08:00`; null for no schedule.",
    )
    work_until = serializers.TimeField(
        allow_null=True,
        format="%H:%M",
        help_text="End of the working hours, as `18:00`; null for no schedule.",
    )
    stop_at = serializers.TimeField(
        allow_null=True, format="%H:%M", help_text="Stops what is not used at this hour; null: never."
    )
    start_at = serializers.TimeField(
        allow_null=True, format="%H:%M", help_text="Starts then what `stop_at` has stopped; null: never."
    )
    days = serializers.ListField(child=serializers.ChoiceField(DAYS), help_text="Working days, as `mon`.")
    holidays = serializers.ListField(
        child=serializers.DateField(), help_text="Days without working hours, as `2026-12-25`."
    )

    class Meta:
        model = ReclaimPolicy
        fields = ("id", *documents.FIELDS, "updated_at")

    def get_fields(self) -> dict[str, Any]:
        target = serializers.CharField(source="target", read_only=True, help_text=TARGET)
        return {"for": target, **super().get_fields()}


class ReclaimInterruptionSerializer(serializers.Serializer[Any]):
    """A workspace that would have been stopped while in use."""

    workspace = serializers.UUIDField(help_text="Id of the workspace.")
    name = serializers.CharField()
    team = serializers.CharField(help_text="Short name of its team.")
    at = serializers.DateTimeField(help_text="When it would have been stopped.")
    cause = serializers.CharField(help_text="`longest`, `gpu_idle`, `release_gpu_idle`.")


class ReclaimPreviewSerializer(serializers.Serializer[Any]):
    """What a policy would have stopped, beyond actual stops."""

    since = serializers.DateTimeField(
        help_text="From when on was replayed: 30 days, or as far as records go."
    )
    recorded_since = serializers.DateTimeField(
        allow_null=True, help_text="Start of the records of times without work; null: no records yet."
    )
    starts = serializers.IntegerField(help_text="How many starts of workspaces were replayed.")
    cut = serializers.BooleanField(help_text="There were more: the newest 20,000 were replayed.")
    workspaces = serializers.IntegerField(help_text="Number of workspaces that would have been stopped.")
    stops = serializers.IntegerField(help_text="Number of workspaces that would have been stopped.")
    releases = serializers.IntegerField(help_text="How many of these stops only release GPUs.")
    gpu_hours = serializers.FloatField(help_text="For how long that would have freed GPUs.")
    interrupted = serializers.IntegerField(help_text="How many of these were not idle at that moment.")
    interruptions = ReclaimInterruptionSerializer(many=True, help_text="The first 20.")
    homes = serializers.IntegerField(help_text="How many home folders it is for, of those not archived.")
    homes_due = serializers.IntegerField(
        help_text="How many of these would be announced at once to be archived."
    )
