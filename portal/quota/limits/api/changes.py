"""REST views to change many quotas at once, and to preview the effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import OpenApiExample
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.models import Team
from portal.quota.limits import policies
from portal.quota.limits.api.limits import SCOPES
from portal.quota.limits.selectors.effects import QuotaEffects, UsageState
from portal.quota.limits.serializers import RESOURCE_HELP, Amount
from portal.quota.limits.services import quota_changes
from portal.quota.limits.services.quota_changes import MAX_CHANGES, QuotaChange

QUOTA_BEFORE = "Stored quota before the change, without grants, in base units; null for none."
QUOTA_AFTER = "Stored quota after the change, without grants, in base units; null for none."


class QuotaLineSerializer(StrictSerializer):
    """The new quota of one team and resource. Borrowing and lending limits do not change."""

    team = serializers.CharField(max_length=40, help_text="Slug of the team.")
    resource = serializers.CharField(max_length=80, help_text=RESOURCE_HELP)
    quota = Amount(allow_null=True, help_text="New quota, in the resource's base unit; null deletes it.")
    seen = Amount(
        allow_null=True,
        required=False,
        help_text="Quota that you last read; null for none. If it is different now, nothing is changed "
        "(412). Without it, any quota is replaced.",
    )

    examples = {"team": "vision", "resource": "gpu:h100", "quota": 8000, "seen": 4000}


class QuotaLinesSerializer(StrictSerializer):
    """New quotas."""

    changes = serializers.ListField(
        child=QuotaLineSerializer(),
        min_length=1,
        max_length=MAX_CHANGES,
        help_text="One for each team and resource.",
    )


class TeamEffectSerializer(serializers.Serializer[Any]):
    """One resource of one team before and after. Amounts are in base units."""

    team = serializers.CharField(help_text="Slug of the team.")
    resource = serializers.CharField(help_text=RESOURCE_HELP)
    quota_before = serializers.IntegerField(allow_null=True, help_text=QUOTA_BEFORE)
    quota_after = serializers.IntegerField(allow_null=True, help_text=QUOTA_AFTER)
    limit_before = serializers.IntegerField(
        source="before.limit", allow_null=True, help_text="Maximum before, with borrowing; null for no limit."
    )
    limit_after = serializers.IntegerField(
        source="after.limit", allow_null=True, help_text="Maximum after, with borrowing; null for no limit."
    )
    used = serializers.IntegerField(source="after.used", help_text="Amount in use.")
    over_limit = serializers.IntegerField(
        source="after.excess", help_text="Used amount above the maximum after. It continues to run."
    )
    usage_state = serializers.ChoiceField(
        UsageState.choices, source="state", help_text="Use compared with quota and maximum after."
    )
    gets_worse = serializers.BooleanField(
        help_text="Whether the use exceeds a quota or maximum that it did not exceed before."
    )


class SumEffectSerializer(serializers.Serializer[Any]):
    """The sum of all quotas of one resource, compared with the capacity. Amounts are in base units."""

    resource = serializers.CharField(help_text=RESOURCE_HELP)
    sum_before = serializers.IntegerField(source="before.quota", help_text="Sum of quotas before.")
    sum_after = serializers.IntegerField(source="after.quota", help_text="Sum of quotas after.")
    capacity = serializers.IntegerField(source="after.capacity", help_text="Capacity in service.")


class QuotaEffectsSerializer(serializers.Serializer[Any]):
    """Effects of new quotas."""

    changes = TeamEffectSerializer(many=True, help_text="The teams and resources of the request.")
    others = TeamEffectSerializer(
        many=True, help_text="Teams of the same cohorts that newly exceed their quota or maximum."
    )
    sums = SumEffectSerializer(many=True, help_text="One for each resource of the request.")
    released = serializers.IntegerField(
        help_text="Waiting workspaces that fit into the quotas only after the change. Member caps and free "
        "capacity can still delay them."
    )


class QuotasChangedSerializer(serializers.Serializer[Any]):
    """The number of changed quotas, and their effects."""

    changed = serializers.IntegerField(help_text="Quotas that were different before.")
    effects = QuotaEffectsSerializer(help_text="Effects of the change.")


EXAMPLES = [
    OpenApiExample(
        "Move 4 H100 from one team to another",
        {
            "changes": [
                {"team": "vision", "resource": "gpu:h100", "quota": 4000, "seen": 8000},
                {"team": "nlp", "resource": "gpu:h100", "quota": 8000, "seen": 4000},
            ]
        },
        request_only=True,
    )
]


class PreviewQuotas(ApiView):
    """Effects of new quotas."""

    tag = "quotas"
    operation_ids = {"post": "previewQuotas"}
    scopes = SCOPES

    @operation(
        "Preview new quotas",
        description="For operators. Returns the effects of `POST /quotas/change` and changes nothing.",
        request=QuotaLinesSerializer,
        responses={200: QuotaEffectsSerializer},
        errors=[400, 415],
        examples=EXAMPLES,
    )
    def post(self, request: UserRequest) -> Response:
        policies.require_set_limits(request.user)
        effects, _overtaken = quota_changes.preview(actor=request.user, changes=_changes(request))
        return Response(_effects(effects))


class ChangeQuotas(ApiView):
    """Many quotas at once."""

    tag = "quotas"
    operation_ids = {"post": "changeQuotas"}
    scopes = SCOPES

    @operation(
        "Change many quotas",
        idempotent=True,
        description=(
            f"For operators. Sets up to {MAX_CHANGES} quotas of teams, or none of them. With `seen`, quotas "
            "that somebody else changed meanwhile are not overwritten: 412, and `overtaken` lists them. "
            "Lower quotas stop no workspace."
        ),
        request=QuotaLinesSerializer,
        responses={200: QuotasChangedSerializer},
        errors=[400, 404, 412, 415],
        examples=EXAMPLES,
    )
    def post(self, request: UserRequest) -> Response:
        policies.require_set_limits(request.user)
        result = quota_changes.change_quotas(actor=request.user, changes=_changes(request))
        return Response({"changed": result.changed, "effects": _effects(result.effects)})


def _effects(effects: QuotaEffects) -> Any:
    return QuotaEffectsSerializer(effects).data


def _changes(request: UserRequest) -> Sequence[QuotaChange]:
    """Return the changes in the body. Raises `InvalidInput` for an unknown team."""
    lines = body_of(request, QuotaLinesSerializer)["changes"]
    slugs = {strip_nul(line["team"]) for line in lines}
    teams = {team.slug: team for team in Team.objects.filter(slug__in=slugs)}
    changes = []
    for index, line in enumerate(lines):
        team = teams.get(strip_nul(line["team"]))
        if team is None:
            reason = Reason(AccountCode.NO_SUCH_TEAM, {"slug": line["team"]})
            raise InvalidInput(reason, errors={f"changes.{index}.team": [reason]})
        changes.append(
            QuotaChange(
                team=team,
                resource=line["resource"],
                quota=line["quota"],
                seen=line.get("seen"),
                checked="seen" in line,
            )
        )
    return changes


urlpatterns = [
    *routes("quotas/preview", PreviewQuotas, "quotas-preview"),
    *routes("quotas/change", ChangeQuotas, "quotas-change"),
]
