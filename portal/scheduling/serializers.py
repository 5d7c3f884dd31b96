"""Serializers of verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog.serializers import WarningSerializer
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.codes import Rule
from portal.common.reasons.wording import message_of
from portal.scheduling import admission
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.types import NodeReason
from portal.workspaces.order_serializers import WorkspaceStartSerializer


class PreviewSerializer(WorkspaceStartSerializer):
    """A request to preview; nothing is created."""


class NodeReasonSerializer(serializers.Serializer[Any]):
    """Why one node cannot take the request."""

    node = serializers.CharField(help_text="Name of the node.")
    reason = serializers.CharField(help_text="A sentence for people.")
    code = serializers.ChoiceField(
        [(item.value, item.name) for item in PlacementCode], help_text="The same as a code."
    )


class HolderSerializer(serializers.Serializer[Any]):
    """A team that uses some of the resource."""

    team = serializers.CharField(help_text="Slug of the team.")
    amount = serializers.IntegerField(help_text="How much it holds, in the resource's base unit.")
    until = serializers.DateTimeField(allow_null=True, help_text="When some of it is expected back.")
    idle = serializers.IntegerField(help_text="How much of it is known to do nothing.")
    idle_s = serializers.IntegerField(allow_null=True, help_text="For at least how long, in seconds.")


class BlockerSerializer(serializers.Serializer[Any]):
    """The blocking rule. Amounts are in the resource's unit: milli-GPU, milli-CPU, MiB."""

    rule = serializers.ChoiceField([item.value for item in Rule], help_text="Which rule, as a code.")
    resource = serializers.CharField(
        allow_blank=True, help_text="The resource it is about, as `gpu:h100`; empty where it is about none."
    )
    wanted = serializers.IntegerField(help_text="How much the request needs.")
    free = serializers.IntegerField(help_text="How much the rule leaves now.")
    limit = serializers.IntegerField(help_text="How much the rule allows in all.")
    holders = HolderSerializer(many=True, help_text="Who holds what is wanted.")


@extend_schema_field({"$ref": "#/components/schemas/StartRequest"})
class StartField(serializers.DictField):
    """The requested workspace, as `start` of a quota request."""


class AskSerializer(serializers.Serializer[Any]):
    """The body for `quota-requests` that would allow the start."""

    team = serializers.CharField(help_text="Short name of the team.")
    kind = serializers.ChoiceField(
        ["quota", "member_cap", "ledger"], help_text="What has to grow: the request's `kind`."
    )
    resource = serializers.CharField(help_text="The resource, as `gpu:h100`.")
    amount = serializers.IntegerField(help_text="How much more, in the resource's base unit.")
    note = serializers.CharField(help_text="What it is for. Replace it with your own reason.")
    start = StartField(
        required=False, help_text="The workspace to start after the approval; absent without a new one."
    )


class VerdictSerializer(serializers.Serializer[Any]):
    """The outcome of the request if made now, and why."""

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
    """The verdict, with warnings about the selection."""

    without_gpu = serializers.BooleanField(
        help_text="Whether the verdict is on a start without accelerators, as `start_without_gpu` wishes for."
    )
    warnings = WarningSerializer(many=True, help_text="Deprecated ones, and what takes their place.")


def reasons_data(reasons: Sequence[NodeReason]) -> list[dict[str, str]]:
    """Return the reason of each node as text and code."""
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
