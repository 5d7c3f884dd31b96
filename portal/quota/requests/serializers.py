"""Serializers of requests, grants, rules and delegations. Amounts are in base units."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.people.accounts.models import Delegation
from portal.quota.limits.models import Grant
from portal.quota.requests import presenters
from portal.quota.requests.evidence import Evidence
from portal.quota.requests.models import AutoApproveRule, QuotaRequest, RequestKind, RequestState
from portal.workspaces.order_serializers import WorkspaceCreateSerializer

AMOUNT_MAX = 2**62
AMOUNT_HELP = (
    "Amount in the resource's base unit: milli-GPU, thousandths of a MIG instance, milli-CPU, MiB or "
    "workspaces. For `gpu_hours`: milli-GPU-seconds (1 GPU-hour is 3,600,000)."
)
RESOURCE_HELP = (
    "`gpu:h100`, `mig:1g.10gb`, `gpu`, `cpu_milli`, `memory_mib`, `disk_mib`, `workspaces`, `gpu_hours`."
)


def amount_field(**more: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=1, max_value=AMOUNT_MAX, help_text=AMOUNT_HELP, **more)


def note_field() -> serializers.CharField:
    return serializers.CharField(max_length=2000, required=False, allow_blank=True)


def hours_field(**more: Any) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=1, max_value=8784, help_text="Maximum duration of a grant, in hours.", **more
    )


class GrantSerializer(serializers.ModelSerializer[Grant]):
    """An increase of a team's quota, or of the cap of one member (`username`), until `ends_at` if set."""

    team = serializers.CharField(source="team.slug")
    username = serializers.CharField(
        source="user.username",
        allow_null=True,
        default=None,
        help_text="Username of the member; null for a grant to the whole team.",
    )
    request = serializers.UUIDField(
        source="request_id",
        allow_null=True,
        help_text="Id of the request that it answers; null for none.",
    )
    amount = serializers.IntegerField(help_text=AMOUNT_HELP)

    class Meta:
        model = Grant
        fields = [
            "id",
            "team",
            "username",
            "resource",
            "amount",
            "starts_at",
            "ends_at",
            "ended_at",
            "request",
        ]
        read_only_fields = fields


class RequestSerializer(serializers.ModelSerializer[QuotaRequest]):
    """A quota request, and its result."""

    team = serializers.CharField(source="team.slug")
    requester = serializers.CharField(source="requester.username", help_text="Username of the requester.")
    kind = serializers.ChoiceField(RequestKind.choices, help_text="Limit that the request would raise.")
    state = serializers.ChoiceField(RequestState.choices)
    amount = serializers.IntegerField(help_text=AMOUNT_HELP)
    workspace = serializers.UUIDField(
        source="workspace_id",
        allow_null=True,
        help_text="Id of the workspace that starts after approval; null for none.",
    )
    decided_by = serializers.CharField(
        source="decided_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the approver; null if not decided, or if a rule decided.",
    )
    rule = serializers.UUIDField(
        source="rule_id",
        allow_null=True,
        help_text="Id of the rule that approved it automatically; null if a person decides.",
    )
    grant = serializers.SerializerMethodField(help_text="Id of the grant; null for none.")

    class Meta:
        model = QuotaRequest
        fields = [
            *(
                "id",
                "team",
                "requester",
                "kind",
                "resource",
                "amount",
                "until",
                "note",
                "workspace",
                "state",
            ),
            *(
                "decided_by",
                "decided_at",
                "decision_note",
                "granted_amount",
                "granted_until",
                "rule",
                "grant",
            ),
            "created_at",
        ]
        read_only_fields = fields

    @extend_schema_field(serializers.UUIDField(allow_null=True))
    def get_grant(self, request: QuotaRequest) -> str | None:
        grant = getattr(request, "grant", None)
        return str(grant.pk) if grant is not None else None


class BorrowerSerializer(serializers.Serializer[Any]):
    """A team from which the grant would reclaim borrowed capacity."""

    team = serializers.CharField(help_text="Slug of the team that has borrowed it.")
    amount = serializers.IntegerField(help_text="Borrowed amount, in the resource's base unit.")


class EvidenceSerializer(serializers.Serializer[Evidence]):
    """Evidence for the decision, in the base unit of `counted_in`; null: not measured or no limit."""

    counted_in = serializers.CharField(help_text="Resource in which use is counted.")
    used = serializers.IntegerField(help_text="Amount used now by the team or, for a cap, by the member.")
    mean_30_days = serializers.IntegerField(source="mean", help_text="Average amount used over 30 days.")
    hours_30_days = serializers.IntegerField(
        source="hours", help_text="Resource-hours used in 30 days, such as GPU-hours."
    )
    workspaces_30_days = serializers.IntegerField(
        source="workspaces",
        help_text="Number of workspaces in the last 30 days: of the team or, for a cap, of the member.",
    )
    idle_percent = serializers.SerializerMethodField(
        help_text="Idle share, in percent, of the allocated accelerators that report their use."
    )
    gpu_use_percent_30_days = serializers.SerializerMethodField(
        help_text="Used share, in percent, of the team's measured GPU time in 30 days."
    )
    quota = serializers.IntegerField(allow_null=True, help_text="Quota of the team, including grants.")
    grant = serializers.IntegerField(help_text="Part of the quota that comes from grants.")
    cohort_left = serializers.IntegerField(
        allow_null=True, help_text="Amount that the cohort can still lend."
    )
    site_size = serializers.IntegerField(
        source="size", allow_null=True, help_text="Capacity of the site in service now."
    )
    site_free = serializers.IntegerField(
        source="free", allow_null=True, help_text="Free capacity of the whole site."
    )
    site_committed = serializers.IntegerField(source="committed", help_text="Sum of all quotas and grants.")
    would_reclaim = BorrowerSerializer(
        source="borrowers",
        many=True,
        help_text="Teams that borrow capacity which the approval might reclaim.",
    )
    effect = serializers.SerializerMethodField(help_text="Effect of the approval on others, in words.")
    balance = serializers.IntegerField(allow_null=True, help_text="Remaining budget.")

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_idle_percent(self, evidence: Evidence) -> int | None:
        return evidence.idle.percent if evidence.idle else None

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_gpu_use_percent_30_days(self, evidence: Evidence) -> int | None:
        return evidence.use.percent if evidence.use else None

    def get_effect(self, evidence: Evidence) -> str:
        return presenters.effect(evidence)


class RequestDetailSerializer(RequestSerializer):
    """A request with its evidence, which is null for users who cannot decide it."""

    evidence = serializers.SerializerMethodField(
        help_text="Facts for the decision; null if you cannot decide."
    )

    class Meta(RequestSerializer.Meta):
        fields = [*RequestSerializer.Meta.fields, "evidence"]
        read_only_fields = fields

    @extend_schema_field(EvidenceSerializer(allow_null=True))
    def get_evidence(self, request: QuotaRequest) -> Any:
        evidence = self.context.get("evidence")
        return EvidenceSerializer(evidence).data if evidence is not None else None


class StartSerializer(WorkspaceCreateSerializer):
    """A workspace to start after the approval. The request names its team."""

    team = None  # type: ignore[assignment]


class AskSerializer(StrictSerializer):
    team = serializers.CharField(max_length=40)
    kind = serializers.ChoiceField(
        RequestKind.choices, default=RequestKind.QUOTA, help_text="Limit to raise."
    )
    resource = serializers.CharField(max_length=80, help_text=RESOURCE_HELP)
    amount = amount_field()
    until = serializers.DateTimeField(
        required=False, allow_null=True, help_text="End of the grant. Default: no end."
    )
    note = serializers.CharField(max_length=2000, help_text="Purpose, for the approver.")
    start = StartSerializer(
        required=False,
        allow_null=True,
        help_text="Workspace to start after the approval; null for none.",
    )


class ApproveSerializer(StrictSerializer):
    amount = amount_field(required=False, allow_null=True)
    until = serializers.DateTimeField(
        required=False, allow_null=True, help_text="End of the grant. Default: as requested."
    )
    note = note_field()


class DenySerializer(StrictSerializer):
    note = serializers.CharField(max_length=2000, help_text="Note for the requester.")


class RevokeSerializer(StrictSerializer):
    note = note_field()


class RuleSerializer(serializers.ModelSerializer[AutoApproveRule]):
    """An auto-approve rule: the maximum total of a team's grants from rules, and their maximum duration."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    amount_at_most = serializers.IntegerField(help_text=AMOUNT_HELP)

    class Meta:
        model = AutoApproveRule
        fields = [
            *("id", "team", "resource", "amount_at_most", "hours_at_most", "enabled"),
            *("created_by", "created_at"),
        ]
        read_only_fields = fields


class RuleCreateSerializer(StrictSerializer):
    team = serializers.CharField(
        max_length=40, required=False, allow_null=True, help_text="Slug of the team. Default: every team."
    )
    resource = serializers.CharField(max_length=80, help_text=RESOURCE_HELP)
    amount_at_most = amount_field()
    hours_at_most = hours_field()


class RuleChangeSerializer(StrictSerializer):
    amount_at_most = amount_field(required=False)
    hours_at_most = hours_field(required=False)
    enabled = serializers.BooleanField(required=False)


class DelegationSerializer(serializers.ModelSerializer[Delegation]):
    """A period in which the delegate can decide in addition to the approver."""

    approver = serializers.CharField(source="approver.username", help_text="Username of the approver.")
    delegate = serializers.CharField(source="delegate.username", help_text="Username of the delegate.")

    class Meta:
        model = Delegation
        fields = ["id", "approver", "delegate", "starts_at", "ends_at"]
        read_only_fields = fields


class DelegateSerializer(StrictSerializer):
    delegate = serializers.CharField(max_length=32, help_text="Username of the delegate.")
    starts_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Start of the delegation. Default: now."
    )
    ends_at = serializers.DateTimeField()
