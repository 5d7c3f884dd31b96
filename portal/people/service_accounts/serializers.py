"""REST serializers of service accounts."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.scopes import Scope
from portal.people.accounts.models import AccountState, User
from portal.people.service_accounts.exchange.conditions import MAX_VALUE, Match
from portal.people.service_accounts.models import TrustRule
from portal.people.service_accounts.rules import MAX_LIFETIME_S, MAX_RENEWED_S, MIN_LIFETIME_S, RENEWED_S


class ServiceAccountSerializer(serializers.ModelSerializer[User]):
    """A service account of a team."""

    team = serializers.CharField(source="owning_team.slug")
    state = serializers.ChoiceField(AccountState.choices)
    token_count = serializers.IntegerField(help_text="Number of valid tokens.")
    last_used_at = serializers.DateTimeField(
        allow_null=True, help_text="When one of its tokens was last used."
    )
    created_at = serializers.DateTimeField()

    class Meta:
        model = User
        fields = [
            *("username", "team", "description", "state", "token_count", "last_used_at"),
            *("created_at", "deactivated_at"),
        ]
        read_only_fields = fields


class ConditionSerializer(StrictSerializer):
    """A condition on a claim of a token."""

    claim = serializers.CharField(max_length=64, help_text="Name of the claim.")
    match = serializers.ChoiceField(
        [item.value for item in Match],
        default=Match.EXACT.value,
        help_text=(
            "How to compare the value. In a `glob`, `*` matches any characters except “/”, `**` matches "
            "any characters, and `?` matches one character except “/”."
        ),
    )
    value = serializers.CharField(max_length=MAX_VALUE, help_text="Required value of the claim.")


class TrustRuleSerializer(serializers.ModelSerializer[TrustRule]):
    """A rule to exchange tokens of an issuer for short-lived tokens of the account."""

    conditions = ConditionSerializer(many=True, help_text="Conditions on the claims. All must match.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices), help_text="Scopes of the issued tokens."
    )
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = TrustRule
        fields = [
            *("id", "name", "issuer", "audience", "conditions", "scopes", "lifetime_s"),
            "max_lifetime_s",
            *("created_by", "created_at", "last_used_at"),
        ]
        read_only_fields = fields


class TrustRuleCreateSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80)
    issuer = serializers.CharField(
        max_length=255, help_text="URL of the issuer. Must be allowed by the operator."
    )
    audience = serializers.CharField(max_length=255, help_text="Required `aud` of the token.")
    conditions = ConditionSerializer(
        many=True, help_text="One of them must identify the owner of the pipeline."
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices),
        allow_empty=False,
        help_text="Scopes of the issued tokens.",
    )
    lifetime_s = serializers.IntegerField(
        default=600,
        min_value=MIN_LIFETIME_S,
        max_value=MAX_LIFETIME_S,
        help_text="Lifetime of a token after its exchange and each renewal. Within it, the portal deletes "
        "the workspaces of a job that has ended without deleting them.",
    )
    max_lifetime_s = serializers.IntegerField(
        default=RENEWED_S,
        min_value=MIN_LIFETIME_S,
        max_value=MAX_RENEWED_S,
        help_text="Total lifetime of a token with all renewals: the time-out of the job.",
    )

    examples = {"issuer": "https://token.actions.githubusercontent.com"}


class ClaimsSerializer(StrictSerializer):
    claims = serializers.DictField(help_text="Claims of a token. Signature and times are not checked.")

    examples = {"claims": {"sub": "repo:octo/app", "repository": "octo/app"}}


class CheckedConditionSerializer(serializers.Serializer[Any]):
    """A condition of a trust rule, with its result."""

    claim = serializers.CharField(help_text="Name of the claim.")
    match = serializers.CharField(help_text="Type of comparison.")
    value = serializers.CharField(help_text="Required value of the claim.")
    seen = serializers.CharField(
        allow_null=True, help_text="Value of the claim; null if missing or not a simple value."
    )
    holds = serializers.BooleanField(help_text="Whether the claims meet the condition.")


class RulePreviewSerializer(serializers.Serializer[Any]):
    """Evaluation of a rule for a token with these claims."""

    rule = serializers.UUIDField(source="rule.pk", help_text="Id of the rule.")
    name = serializers.CharField(source="rule.name")
    matches = serializers.BooleanField(help_text="Whether all conditions hold.")
    issuer = serializers.BooleanField(help_text="Whether `iss` matches the rule.")
    audience = serializers.BooleanField(help_text="Whether `aud` matches the rule.")
    conditions = CheckedConditionSerializer(many=True, help_text="The conditions, with the result of each.")


class ServiceAccountCreateSerializer(StrictSerializer):
    name = serializers.CharField(
        max_length=32,
        help_text="Name of the account. The username starts with `svc-`; the prefix is added if missing.",
    )
    description = serializers.CharField(
        max_length=200, required=False, allow_blank=True, default="", help_text="Purpose."
    )


class ServiceAccountChangeSerializer(StrictSerializer):
    description = serializers.CharField(max_length=200, allow_blank=True, help_text="Purpose.")
