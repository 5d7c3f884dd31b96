"""REST serializers of revisions."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class DifferenceSerializer(serializers.Serializer[Any]):
    """A field that a version changed."""

    field = serializers.CharField(help_text="Name of the field.")
    before = serializers.JSONField(allow_null=True, help_text="Previous value; null if it was added.")
    after = serializers.JSONField(allow_null=True, help_text="New value; null if it was removed.")


class RevisionSerializer(serializers.Serializer[Any]):
    """An earlier version: who made the change, when, and what changed."""

    number = serializers.IntegerField(help_text="Number of the version, from 1.")
    at = serializers.DateTimeField(help_text="Time of the change.")
    actor = serializers.CharField(source="actor_label", help_text="Display name of the actor.")
    act = serializers.CharField(help_text="`created`, `changed`, `restored`, or `found`: as it was at first.")
    restored_from = serializers.IntegerField(
        allow_null=True, help_text="Number of the version that it restored; null for none."
    )
    changes = DifferenceSerializer(many=True, help_text="Changes from the version before.")
    data = serializers.JSONField(  # type: ignore[assignment]
        help_text="All fields, as of this version."
    )
