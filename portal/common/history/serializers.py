"""Kept versions as REST shows them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class DifferenceSerializer(serializers.Serializer[Any]):
    """A field that a version changed; null where it had none."""

    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class RevisionSerializer(serializers.Serializer[Any]):
    """A kept version: who made it so, when, and what it changed of the one before it."""

    number = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_label")
    act = serializers.CharField(help_text="`created`, `changed`, `restored`, or `found`: as it was at first.")
    restored_from = serializers.IntegerField(allow_null=True)
    changes = DifferenceSerializer(many=True)
    data = serializers.JSONField(  # type: ignore[assignment]
        help_text="The whole of it, as it stood then."
    )
