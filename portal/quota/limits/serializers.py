"""Serializers of limits. Amounts are in base units: thousandths, milli-CPU, MiB."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.formatting import format_resource, unit_symbol, units_per_whole
from portal.quota.limits.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit
from portal.quota.limits.services.cohorts import MAX_WEIGHT_MILLI
from portal.quota.limits.services.limits import MAX_AMOUNT, MAX_RATE_MILLI

RESOURCE_HELP = (
    "`gpu:h100` (thousandths of a GPU of a model), `mig:1g.10gb` (thousandths of an instance), `gpu`"
    " (thousandths of GPUs of any model), `cpu_milli`, `memory_mib`, `disk_mib`, `workspaces`."
)

BORROWING_HELP = "Maximum amount to borrow, in the resource's base unit; null for no limit."
LENDING_HELP = "Maximum amount to lend, in the resource's base unit; null for all that is unused."


class Amount(serializers.IntegerField):
    """A non-negative amount in base units."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=0, max_value=MAX_AMOUNT, **options)


def _notes() -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(),
        help_text="Effects of the change on existing workspaces, as sentences.",
    )


class _ResourceRow(serializers.Serializer[Any]):
    label = serializers.SerializerMethodField(help_text="Name of the resource, for people.")  # type: ignore[assignment]

    def get_label(self, row: Quota | MemberCap | SiteLimit | ResourceRate) -> str:
        return format_resource(row.resource)


class QuotaSerializer(_ResourceRow, serializers.ModelSerializer[Quota]):
    """The quota of a team or cohort for one resource."""

    team = serializers.CharField(
        source="team.slug",
        default=None,
        allow_null=True,
        help_text="Slug of the team; null for a quota of a cohort.",
    )
    cohort = serializers.CharField(
        source="cohort.slug",
        default=None,
        allow_null=True,
        help_text="Slug of the cohort; null for a quota of a team.",
    )
    borrowing_limit = serializers.IntegerField(
        allow_null=True,
        help_text=BORROWING_HELP,
    )
    lending_limit = serializers.IntegerField(
        allow_null=True,
        help_text=LENDING_HELP,
    )

    class Meta:
        model = Quota
        fields = ["id", "team", "cohort", "resource", "label", "quota", "borrowing_limit", "lending_limit"]
        read_only_fields = fields


class QuotaWrittenSerializer(QuotaSerializer):
    """A quota after a write."""

    notes = _notes()

    class Meta(QuotaSerializer.Meta):
        fields = [*QuotaSerializer.Meta.fields, "notes"]
        read_only_fields = fields


class QuotaChangeSerializer(StrictSerializer):
    quota = Amount(help_text="Guaranteed amount, in the resource's base unit.")
    borrowing_limit = Amount(
        allow_null=True,
        default=None,
        help_text=BORROWING_HELP,
    )
    lending_limit = Amount(
        allow_null=True,
        default=None,
        help_text=LENDING_HELP,
    )

    examples = {"quota": 8000, "borrowing_limit": 4000, "lending_limit": 4000}


class QuotaCreateSerializer(QuotaChangeSerializer):
    team = serializers.CharField(
        max_length=40, required=False, help_text="Slug of the team. Set either `team` or `cohort`."
    )
    cohort = serializers.CharField(
        max_length=40, required=False, help_text="Slug of the cohort. Set either `team` or `cohort`."
    )
    resource = serializers.CharField(max_length=80, help_text=RESOURCE_HELP)

    examples = {"cohort": "research"}


class CohortSerializer(serializers.ModelSerializer[Cohort]):
    """A group of teams or cohorts that can borrow unused quota from each other."""

    parent = serializers.CharField(
        source="parent.slug",
        default=None,
        allow_null=True,
        help_text="Slug of the parent cohort; null for none.",
    )  # type: ignore[assignment]
    team_count = serializers.IntegerField(help_text="Number of teams in the cohort.")

    class Meta:
        model = Cohort
        fields = ["slug", "name", "parent", "weight_milli", "borrow_first", "preempt_first", "team_count"]
        read_only_fields = fields


class _Weight(serializers.IntegerField):
    def __init__(self, **options: Any) -> None:
        super().__init__(
            min_value=1,
            max_value=MAX_WEIGHT_MILLI,
            default=1000,
            help_text="Weight in fair sharing, in thousandths.",
            **options,
        )


class _FungibilitySerializer(StrictSerializer):
    # When a request that lists several flavors takes its next one. No docstring: subclasses would inherit it.
    borrow_first = serializers.BooleanField(
        default=True,
        help_text="Whether a request borrows quota for a flavor before it tries the next one.",
    )
    preempt_first = serializers.BooleanField(
        default=False,
        help_text="Whether a request preempts for a flavor before it tries the next one.",
    )


class _CohortFields(_FungibilitySerializer):
    parent = serializers.CharField(
        max_length=40,
        allow_null=True,
        default=None,
        help_text="Slug of the parent cohort; null for none.",
    )  # type: ignore[assignment]
    weight_milli = _Weight()


class CohortChangeSerializer(_CohortFields):
    name = serializers.CharField(max_length=80)


class CohortCreateSerializer(_CohortFields):
    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=80, required=False, allow_blank=True)


class ShareSerializer(serializers.Serializer[Any]):
    """A team's cohort and weight."""

    team = serializers.CharField()
    cohort = serializers.CharField(allow_null=True, help_text="Slug of the cohort.")
    weight_milli = serializers.IntegerField(help_text="Weight in fair sharing, in thousandths.")
    reclaim = serializers.BooleanField(
        help_text="Whether the team immediately reclaims what others have borrowed from it."
    )


class ShareChangeSerializer(StrictSerializer):
    cohort = serializers.CharField(
        max_length=40, allow_null=True, default=None, help_text="Slug of the cohort."
    )
    weight_milli = _Weight()
    reclaim = serializers.BooleanField(
        default=True,
        help_text="Whether the team can immediately reclaim what others have borrowed from it.",
    )

    examples = {"cohort": "research"}


class BarSerializer(serializers.Serializer[Any]):
    """A team's usage of one resource. Amounts in base units; null: no limit."""

    resource = serializers.CharField(help_text="Resource, such as `gpu:h100`; `gpu` for all GPUs.")
    label = serializers.CharField(help_text="Name of the resource for people.")  # type: ignore[assignment]
    factor = serializers.SerializerMethodField(help_text="Number of base units in one display unit.")
    unit = serializers.SerializerMethodField(help_text="Display unit; empty if the label has it.")
    used = serializers.IntegerField(help_text="Amount used by workspaces that run, start or stop.")
    queued = serializers.IntegerField(help_text="Amount requested by queued workspaces.")
    borrowed = serializers.IntegerField(help_text="Used amount above the quota.")
    quota = serializers.IntegerField(allow_null=True, help_text="Quota, including grants; null for no limit.")
    grant = serializers.IntegerField(help_text="Part of the quota that comes from grants, which end.")
    lendable = serializers.IntegerField(
        allow_null=True, help_text="Amount that other teams can borrow; null for all that is unused."
    )
    lent = serializers.IntegerField(help_text="Amount that other teams have borrowed from it.")
    limit = serializers.IntegerField(
        allow_null=True, help_text="Maximum amount that the team can use; null for no limit."
    )
    available = serializers.IntegerField(
        allow_null=True, help_text="Amount still available within the limits; null for no limit."
    )
    over = serializers.IntegerField(source="excess", help_text="Used amount above the limit.")
    mine = serializers.IntegerField(help_text="Amount used by you.")
    cap = serializers.IntegerField(
        allow_null=True, help_text="Maximum amount that you can use; null for no limit."
    )

    def get_factor(self, bar: Any) -> int:
        return units_per_whole(bar.resource)

    def get_unit(self, bar: Any) -> str:
        return unit_symbol(bar.resource)


class UsageSerializer(serializers.Serializer[Any]):
    """A team's usage and limits."""

    team = serializers.CharField()
    resources = BarSerializer(many=True, help_text="Limits and use by resource.")


class MemberCapSerializer(_ResourceRow, serializers.ModelSerializer[MemberCap]):
    """The maximum for a member of a team; without a `username`, for every member without their own cap."""

    team = serializers.CharField(source="team.slug")
    username = serializers.CharField(source="user.username", default=None, allow_null=True)

    class Meta:
        model = MemberCap
        fields = ["id", "team", "username", "resource", "label", "amount"]
        read_only_fields = fields


class MemberCapWrittenSerializer(MemberCapSerializer):
    """A cap after a write."""

    notes = _notes()

    class Meta(MemberCapSerializer.Meta):
        fields = [*MemberCapSerializer.Meta.fields, "notes"]
        read_only_fields = fields


class MemberCapChangeSerializer(StrictSerializer):
    amount = Amount(help_text="Maximum amount for a member, in the resource's base unit.")


class MemberCapCreateSerializer(MemberCapChangeSerializer):
    team = serializers.CharField(max_length=40)
    username = serializers.CharField(
        max_length=32,
        allow_null=True,
        default=None,
        help_text="Username of the member; null for every member without a cap of their own.",
    )
    resource = serializers.CharField(max_length=80, help_text=RESOURCE_HELP)


class SiteLimitSerializer(_ResourceRow, serializers.ModelSerializer[SiteLimit]):
    """The maximum for all teams together."""

    class Meta:
        model = SiteLimit
        fields = ["resource", "label", "amount"]
        read_only_fields = fields


class SiteLimitWrittenSerializer(SiteLimitSerializer):
    """A site limit after a write."""

    notes = _notes()

    class Meta(SiteLimitSerializer.Meta):
        fields = [*SiteLimitSerializer.Meta.fields, "notes"]
        read_only_fields = fields


class SiteLimitChangeSerializer(StrictSerializer):
    amount = Amount(help_text="Maximum amount for the whole site, in the resource's base unit.")


class RateSerializer(_ResourceRow, serializers.ModelSerializer[ResourceRate]):
    """The price of an hour of an accelerator, in thousandths of a GPU-hour. Default: 1000."""

    class Meta:
        model = ResourceRate
        fields = ["resource", "label", "rate_milli"]
        read_only_fields = fields


class RateChangeSerializer(StrictSerializer):
    rate_milli = serializers.IntegerField(
        min_value=0,
        max_value=MAX_RATE_MILLI,
        help_text="Price of an hour of a whole unit, in thousandths of a GPU-hour.",
    )

    examples = {"rate_milli": 1000}
