"""Verdicts as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from portal.catalog.serializers import WarningSerializer
from portal.common.problem_serializers import (
    AskSerializer,
    BlockerSerializer,
    NodeReasonSerializer,
    ReasonSerializer,
)
from portal.common.reasons.wording import message_of
from portal.scheduling import admission
from portal.scheduling.engine.placement.types import NodeReason
from portal.workspaces.order_serializers import WorkspaceStartSerializer


class PreviewSerializer(WorkspaceStartSerializer):
    """A request whose verdict is asked for; nothing is created."""


class VerdictSerializer(serializers.Serializer[Any]):
    """What would happen to the request now, and why."""

    outcome = serializers.ChoiceField(
        [item.value for item in admission.Outcome], help_text="What would happen to the request."
    )
    message = serializers.CharField()
    next_action = serializers.CharField()
    reason = ReasonSerializer(help_text="What `message` says, for programs.")
    pool = serializers.CharField(allow_null=True)
    nodes = serializers.ListField(
        child=serializers.CharField(), help_text="Nodes that it would be placed on."
    )
    reasons = NodeReasonSerializer(many=True, help_text="Why it does not fit, for each node.")
    position = serializers.IntegerField(allow_null=True, help_text="Place in the queue, from 1.")
    eta = serializers.DateTimeField(allow_null=True, help_text="When it is expected to start.")
    eta_basis = serializers.CharField(allow_blank=True, help_text="Basis of the estimate.")
    blocker = BlockerSerializer(
        allow_null=True, help_text="The rule that requires an approval; null for none."
    )
    ask = AskSerializer(
        allow_null=True,
        help_text="Body for `POST quota-requests` that would allow it; null if none would.",
    )
    makes_room = serializers.IntegerField(
        help_text="How many running workspaces would be asked to make room for it."
    )
    alternatives = serializers.ListField(
        child=serializers.CharField(), help_text="Flavors that would start now, the nearest first."
    )


class AdmissionPreviewSerializer(VerdictSerializer):
    """The verdict, with what somebody should know before choosing these."""

    without_gpu = serializers.BooleanField(
        help_text="Whether the verdict is on a start without accelerators, as `start_without_gpu` wishes for."
    )
    warnings = WarningSerializer(many=True, help_text="Deprecated ones, and what takes their place.")


def reasons_data(reasons: Sequence[NodeReason]) -> list[dict[str, str]]:
    """Each node's reason as text and code."""
    return [
        {"node": node, "reason": message_of(reason), "code": reason.code.value} for node, reason in reasons
    ]


def verdict_data(verdict: admission.Verdict, *, alternatives: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "outcome": verdict.outcome.value,
        "message": verdict.message,
        "next_action": verdict.next_action,
        "reason": verdict.reason.as_json(),
        "pool": verdict.pool.slug if verdict.pool else None,
        "nodes": [item.node for item in verdict.placement.nodes] if verdict.placement else [],
        "reasons": reasons_data(verdict.reasons),
        "position": verdict.position,
        "eta": verdict.eta_at,
        "eta_basis": verdict.eta_basis,
        "blocker": verdict.blocker or None,
        "ask": asdict(verdict.ask) if verdict.ask else None,
        "makes_room": len(verdict.makes_room),
        "alternatives": list(alternatives),
    }
