"""Serializers of reclaim policies."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.catalog.models import MAX_LIFETIME_H
from portal.common.api import StrictSerializer
from portal.reclaim import policy_documents as documents
from portal.reclaim.engine.week import DAYS
from portal.reclaim.models import MAX_DAYS, MAX_MINUTES, MAX_NOTICE_MINUTES, ReclaimPolicy

TARGET = "Target of the policy: `site`, or kind and slug, as `pool:…`, `template:…`, `flavor:…` or `team:…`."


def _limit(most: int, help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0, max_value=most, allow_null=True, required=False, help_text=help_text
    )


class ReclaimPolicyValuesSerializer(StrictSerializer):
    """The values of a policy. Null inherits; a limit of 0 disables."""

    idle_minutes = _limit(
        MAX_MINUTES, ("Idle limit in minutes for workspaces without accelerators; 0 for never.")
    )
    idle_gpu_minutes = _limit(
        MAX_MINUTES, ("Idle limit in minutes for workspaces with accelerators; 0 for never.")
    )
    gpu_unused_minutes = _limit(
        MAX_MINUTES, ("Limit in minutes with all GPUs at 0 %, whatever else runs; 0 for never.")
    )
    release_gpu_minutes = _limit(
        MAX_MINUTES,
        (
            "Idle limit in minutes after which accelerators are released and the app restarts without "
            "them, instead of a stop; 0 for never."
        ),
    )
    longest_hours = _limit(
        MAX_LIFETIME_H, ("Maximum lifetime in hours, extensions included; 0 for no limit.")
    )
    notice_minutes = _limit(
        MAX_NOTICE_MINUTES, ("Minimum notice before a stop, in minutes. Not for policies of teams.")
    )
    archive_days = _limit(
        MAX_DAYS,
        (
            "Unused days after which home folders are archived and emptied; 0 for never. For policies of "
            "site, pools and teams."
        ),
    )
    delete_days = _limit(
        MAX_DAYS,
        (
            "Days in an archive after which administrators can delete a home folder; 0 for never. For "
            "policies of site and pools."
        ),
    )
    stop_when_spent = serializers.BooleanField(
        allow_null=True,
        required=False,
        help_text="Whether to stop workspaces with accelerators once the team's GPU-hours are spent.",
    )
    zone = serializers.CharField(
        max_length=64, allow_blank=True, required=False, help_text="Time zone, such as `Europe/Berlin`."
    )
    days = serializers.ListField(
        child=serializers.ChoiceField(DAYS),
        max_length=7,
        required=False,
        help_text="Working days, such as `mon`.",
    )
    work_from = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="Start of the working hours, such as `08:00`; null for no schedule.",
    )
    work_until = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="End of the working hours, such as `18:00`; null for no schedule.",
    )
    after_hours_minutes = _limit(
        MAX_MINUTES, ("Idle limit in minutes outside working hours. Applies only if it is shorter.")
    )
    stop_at = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text="Time of day at which unused workspaces stop; null for none.",
    )
    start_at = serializers.TimeField(
        allow_null=True,
        required=False,
        format="%H:%M",
        help_text=(
            "Time of day at which workspaces stopped by `stop_at` start again, on `days` except holidays."
        ),
    )
    holidays = serializers.ListField(
        child=serializers.DateField(),
        max_length=documents.MAX_HOLIDAYS,
        required=False,
        help_text="Holidays, such as `2026-12-25`.",
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
        help_text="Start of the working hours, such as `08:00`; null for no schedule.",
    )
    work_until = serializers.TimeField(
        allow_null=True,
        format="%H:%M",
        help_text="End of the working hours, such as `18:00`; null for no schedule.",
    )
    stop_at = serializers.TimeField(
        allow_null=True,
        format="%H:%M",
        help_text="Time of day at which unused workspaces stop; null for none.",
    )
    start_at = serializers.TimeField(
        allow_null=True,
        format="%H:%M",
        help_text="Time of day at which workspaces stopped by `stop_at` start again; null for none.",
    )
    days = serializers.ListField(
        child=serializers.ChoiceField(DAYS), help_text="Working days, such as `mon`."
    )
    holidays = serializers.ListField(
        child=serializers.DateField(), help_text="Days without working hours, such as `2026-12-25`."
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
    team = serializers.CharField(help_text="Slug of its team.")
    at = serializers.DateTimeField(help_text="Time at which it would have been stopped.")
    cause = serializers.CharField(help_text="Cause: `longest`, `gpu_idle` or `release_gpu_idle`.")


class ReclaimPreviewSerializer(serializers.Serializer[Any]):
    """Workspaces that a policy would have stopped, beyond actual stops."""

    since = serializers.DateTimeField(
        help_text="Start of the simulated period: 30 days ago, or the start of the records."
    )
    recorded_since = serializers.DateTimeField(
        allow_null=True, help_text="Start of the records of times without work; null: no records yet."
    )
    starts = serializers.IntegerField(help_text="Number of workspace starts in the simulation.")
    cut = serializers.BooleanField(
        help_text="Whether there were more starts than the newest 20,000, which were simulated."
    )
    workspaces = serializers.IntegerField(help_text="Number of workspaces that would have been stopped.")
    stops = serializers.IntegerField(help_text="Number of workspaces that would have been stopped.")
    releases = serializers.IntegerField(help_text="Number of these stops that only release GPUs.")
    gpu_hours = serializers.FloatField(help_text="GPU-hours that would have been freed.")
    interrupted = serializers.IntegerField(
        help_text="Number of these workspaces that were not idle at that moment."
    )
    interruptions = ReclaimInterruptionSerializer(
        many=True, help_text="Workspaces that would have been stopped while in use; up to 20."
    )
    homes = serializers.IntegerField(
        help_text="Number of home folders to which the policy applies, except archived ones."
    )
    homes_due = serializers.IntegerField(
        help_text="Number of these that would get notice of archival immediately."
    )
