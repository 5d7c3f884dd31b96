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
from portal.scheduling.engine.codes import PlacementCode
from portal.scheduling.engine.placement.types import NodeReason
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces.order_serializers import WorkspaceStartSerializer


class PreviewSerializer(WorkspaceStartSerializer):
    """A request to preview; nothing is created."""


class NodeReasonSerializer(serializers.Serializer[Any]):
    """Why one node cannot take the request."""

    node = serializers.CharField(help_text="Name of the node.")
    reason = serializers.CharField(help_text="Reason, as a sentence.")
    code = serializers.ChoiceField(
        [(item.value, item.name) for item in PlacementCode], help_text="Code of the reason."
    )


class HolderSerializer(serializers.Serializer[Any]):
    """A team that uses some of the resource."""

    team = serializers.CharField(help_text="Slug of the team.")
    amount = serializers.IntegerField(help_text="Amount that the team uses, in the resource's base unit.")
    until = serializers.DateTimeField(
        allow_null=True, help_text="Time at which some of it is expected to become free; null if unknown."
    )
    idle = serializers.IntegerField(help_text="Amount that is known to be idle.")
    idle_s = serializers.IntegerField(
        allow_null=True, help_text="Minimum idle time of that amount, in seconds."
    )


class BlockerSerializer(serializers.Serializer[Any]):
    """The blocking rule. Amounts are in the resource's unit: milli-GPU, milli-CPU, MiB."""

    rule = serializers.ChoiceField([item.value for item in Rule], help_text="Code of the rule.")
    resource = serializers.CharField(
        allow_blank=True, help_text="Resource, such as `gpu:h100`; empty for none."
    )
    wanted = serializers.IntegerField(help_text="Amount that the request needs.")
    free = serializers.IntegerField(help_text="Amount that the rule leaves now.")
    limit = serializers.IntegerField(help_text="Total amount that the rule allows.")
    holders = HolderSerializer(many=True, help_text="Teams that use the requested resource.")


@extend_schema_field({"$ref": "#/components/schemas/StartRequest"})
class StartField(serializers.DictField):
    """The requested workspace, in the format of `start` in a quota request."""


class AskSerializer(serializers.Serializer[Any]):
    """The body for `quota-requests` that would allow the start."""

    team = serializers.CharField(help_text="Slug of the team.")
    kind = serializers.ChoiceField(
        ["quota", "member_cap", "ledger"], help_text="Limit to raise: `kind` of the request."
    )
    resource = serializers.CharField(help_text="Resource, such as `gpu:h100`.")
    amount = serializers.IntegerField(help_text="Additional amount, in the resource's base unit.")
    note = serializers.CharField(help_text="Purpose. Replace it with your own reason.")
    start = StartField(
        required=False, help_text="Workspace to start after the approval; absent if there is none."
    )


class HomeMoveAheadSerializer(serializers.Serializer[Any]):
    """A move of your home folder to another machine before the start."""

    from_node = serializers.CharField(source="source", help_text="Machine that the folder is on.")
    to_node = serializers.CharField(source="target", help_text="Machine that the workspace would start on.")
    size_mib = serializers.IntegerField(help_text="Size of the folder in MiB, as last measured.")
    seconds = serializers.IntegerField(help_text="Expected duration in seconds.")


class VerdictSerializer(serializers.Serializer[Any]):
    """The outcome of the request if submitted now, and the reason."""

    outcome = serializers.ChoiceField([item.value for item in Outcome], help_text="Outcome of the request.")
    message = serializers.CharField()
    next_action = serializers.CharField()
    reason = ReasonSerializer(help_text="Machine-readable form of `message`.")
    pool = serializers.CharField(allow_null=True)
    nodes = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the nodes that the workspace would be placed on."
    )
    reasons = NodeReasonSerializer(many=True, help_text="Reason why it does not fit, for each node.")
    position = serializers.IntegerField(allow_null=True, help_text="Position in the queue, from 1.")
    eta = serializers.DateTimeField(allow_null=True, help_text="Estimated start.")
    eta_basis = serializers.CharField(allow_blank=True, help_text="Basis of the estimate.")
    member_order = serializers.CharField(
        allow_blank=True,
        help_text="How the use of the team's members changes the position; empty if it does not.",
    )
    flavor = serializers.CharField(
        allow_null=True,
        help_text="Of several `flavors`, the one on which it starts or is expected to start; else null.",
    )
    next_flavor = serializers.CharField(
        allow_blank=True, help_text="Why it waits for this one of its `flavors`; empty if it lists one."
    )
    blocker = BlockerSerializer(
        allow_null=True, help_text="The rule that requires an approval; null for none."
    )
    ask = AskSerializer(
        allow_null=True,
        help_text="Body for `POST quota-requests` that would allow it; null if none would.",
    )
    makes_room = serializers.IntegerField(
        help_text="Number of running workspaces that would be preempted for it."
    )
    home_move = HomeMoveAheadSerializer(
        allow_null=True, help_text="Move of your home folder before the start; null for none."
    )
    alternatives = serializers.ListField(
        child=serializers.CharField(), help_text="Flavors that would start now, closest match first."
    )


class AdmissionPreviewSerializer(VerdictSerializer):
    """The verdict, with warnings about the selection."""

    without_gpu = serializers.BooleanField(
        help_text="Whether the verdict is for a start without accelerators, because of `start_without_gpu`."
    )
    home_move_offer = HomeMoveAheadSerializer(
        allow_null=True,
        help_text="Move that would start it now if you set `move_home`; null if that makes no difference.",
    )
    warnings = WarningSerializer(many=True, help_text="Deprecated selections, and their replacements.")


def reasons_data(reasons: Sequence[NodeReason]) -> list[dict[str, str]]:
    """Return each node's reason as text and code."""
    return [
        {"node": node, "reason": message_of(reason), "code": reason.code.value} for node, reason in reasons
    ]


def verdict_data(verdict: Verdict, *, alternatives: Sequence[str] = ()) -> dict[str, Any]:
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
        "member_order": verdict.member_order_text,
        "flavor": verdict.flavor.slug if verdict.flavor is not None else None,
        "next_flavor": verdict.next_flavor_text,
        "blocker": verdict.blocker or None,
        "ask": asdict(verdict.quota_request) if verdict.quota_request else None,
        "makes_room": len(verdict.makes_room),
        "home_move": verdict.home_move,
        "alternatives": list(alternatives),
    }
