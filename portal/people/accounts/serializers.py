"""REST serializers of users, teams and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.representation import stamp
from portal.common.scopes import Scope
from portal.people.accounts import team_egress
from portal.people.accounts.models import AccountKind, ApiToken, Membership, Role, SiteRole, Team, TeamEgress
from portal.people.accounts.team_contents import TeamContents
from portal.people.accounts.tokens import MAX_OVERLAP_HOURS


class MemberSerializer(serializers.ModelSerializer[Membership]):
    """A user's membership in a team."""

    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(Role.choices, help_text="Role in the team.")

    class Meta:
        model = Membership
        fields = ["username", "role", "joined_at"]
        read_only_fields = fields


class TeamSerializer(serializers.ModelSerializer[Team]):
    """A team. `role` is your own role; null for operators who are not a member."""

    role = serializers.SerializerMethodField(help_text="Role in the team.")
    member_count = serializers.IntegerField(help_text="Number of members.")

    class Meta:
        model = Team
        fields = [
            *("slug", "name", "role", "member_count", "member_shares"),
            *("created_at", "archived_at", "deletion_started_at"),
        ]
        read_only_fields = fields

    @extend_schema_field(serializers.ChoiceField(Role.choices, allow_null=True))
    def get_role(self, team: Team) -> str | None:
        roles: dict[Any, str] = self.context["roles"]
        return roles.get(team.pk)


class TeamCreateSerializer(StrictSerializer):
    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=80, required=False, allow_blank=True)
    owner = serializers.CharField(
        max_length=32, required=False, help_text="Username of the first owner. Default: you."
    )


class TeamChangeSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80, help_text="New name. The slug cannot be changed.")
    member_shares = serializers.BooleanField(
        help_text="Whether members take turns in the queue: the one who used least comes first."
    )


class TeamContentsSerializer(serializers.Serializer[TeamContents]):
    """Contents of the team. Archiving stops `active` workspaces; deleting the team deletes all of this."""

    members = serializers.IntegerField(help_text="Number of members, without service accounts.")
    service_accounts = serializers.IntegerField(help_text="Number of service accounts.")
    tokens = serializers.IntegerField(help_text="Number of valid tokens of service accounts.")
    workspaces = serializers.IntegerField(help_text="Number of workspaces, except deleted ones.")
    active = serializers.IntegerField(help_text="Number of these workspaces that run or are queued.")
    homes = serializers.IntegerField(help_text="Number of home folders, one per user and node.")
    templates = serializers.IntegerField(help_text="Number of templates of the team.")
    environments = serializers.IntegerField(help_text="Number of environments of the team.")
    secrets = serializers.IntegerField(help_text="Number of secrets of the team.")
    webhooks = serializers.IntegerField(help_text="Number of webhooks of the team.")
    channels = serializers.IntegerField(help_text="Number of channels of the team.")
    quotas = serializers.IntegerField(help_text="Number of limits of the team and of its members.")
    has_gpu_hours = serializers.BooleanField(help_text="Whether the team has a ledger of GPU-hours.")
    has_budget = serializers.BooleanField(help_text="Whether the team has a budget.")


class TeamEgressSerializer(serializers.ModelSerializer[Team]):
    """Egress policy of a team's workspaces. The strictest of node, pool, team and template applies."""

    egress = serializers.ChoiceField(
        TeamEgress.choices,
        help_text="Maximum network access of the team's workspaces; empty for the policy of the pool.",
    )
    egress_allow = serializers.CharField(
        help_text="With `list`: allowed hosts and networks, separated by commas."
    )

    class Meta:
        model = Team
        fields = ["egress", "egress_allow", "updated_at"]
        read_only_fields = fields


class TeamEgressChangeSerializer(StrictSerializer):
    egress = serializers.ChoiceField(
        [choice for choice in TeamEgress.choices if choice[0]],
        allow_blank=True,
        help_text="Maximum network access of the team's workspaces; empty for the policy of the pool.",
    )
    egress_allow = serializers.CharField(
        max_length=team_egress.MAX_ALLOW,
        allow_blank=True,
        default="",
        help_text="With `list`: allowed hosts, such as `*.example.org`, and networks, separated by commas.",
    )

    examples = {"egress_allow": "pypi.org\nfiles.pythonhosted.org"}


class MemberSetSerializer(StrictSerializer):
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER, help_text="Role in the team.")


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token without its secret."""

    owner = serializers.CharField(source="owner.username", help_text="Username of the owner.")
    kind = serializers.ChoiceField(
        AccountKind.choices,
        source="owner.kind",
        help_text="Whether the owner is a person or a service account.",
    )
    team = serializers.CharField(
        source="owner.owning_team.slug",
        allow_null=True,
        help_text="Slug of the team of a service account; null for a person.",
    )
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        help_text="Username of the creator; null for a token exchange or a deleted account.",
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices), help_text="Scopes of the token."
    )
    expires_at = serializers.DateTimeField(
        source="ends_at", allow_null=True, help_text="Time at which it expires; null for never."
    )
    replaces = serializers.UUIDField(
        source="replaces_id",
        allow_null=True,
        help_text="Id of the token that it replaced by rotation; null for none.",
    )

    class Meta:
        model = ApiToken
        fields = [
            *("id", "name", "prefix", "owner", "kind", "team", "created_by", "scopes"),
            *("created_at", "expires_at", "renewable_until", "last_used_at", "last_used_from"),
            "replaces",
        ]
        read_only_fields = fields

    def to_representation(self, token: ApiToken) -> dict[str, Any]:
        return {
            "id": str(token.pk),
            "name": token.name,
            "prefix": token.prefix,
            "owner": token.owner.username,
            "kind": token.owner.kind.value,
            "team": token.owner.owning_team.slug if token.owner.owning_team else None,
            "created_by": token.created_by.username if token.created_by else None,
            "scopes": list(token.scopes),
            "created_at": stamp(token.created_at),
            "expires_at": stamp(token.ends_at),
            "renewable_until": stamp(token.renewable_until),
            "last_used_at": stamp(token.last_used_at),
            "last_used_from": token.last_used_from,
            "replaces": str(token.replaces_id) if token.replaces_id else None,
        }


class NewTokenSerializer(TokenSerializer):
    """A new token. `secret` is shown only once."""

    secret = serializers.SerializerMethodField(help_text="The token. Shown only once.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "secret"]
        read_only_fields = fields

    def to_representation(self, token: ApiToken) -> dict[str, Any]:
        return {**super().to_representation(token), "secret": self.get_secret(token)}

    def get_secret(self, token: ApiToken) -> str:
        return str(self.context["secret"])


class TokenCreateSerializer(StrictSerializer):
    name = serializers.CharField(max_length=80, help_text="Name of the token, to recognise it.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices),
        required=False,
        allow_empty=False,
        help_text=(
            "Scopes of the new token. Default: the scopes of the token of this request, or all scopes with "
            "a session."
        ),
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)

    examples = {"expires_at": "2026-12-31T00:00:00Z"}


class TokenRotateSerializer(StrictSerializer):
    overlap_hours = serializers.IntegerField(
        min_value=0,
        max_value=MAX_OVERLAP_HOURS,
        default=24,
        help_text="Hours during which the old token stays valid.",
    )

    examples = {"overlap_hours": 24}


class OwnTeamSerializer(serializers.Serializer[Any]):
    """A team that you are in, with your role."""

    slug = serializers.CharField()
    name = serializers.CharField()
    role = serializers.ChoiceField(Role.choices, help_text="Your role in the team.")


class MeSerializer(serializers.Serializer[Any]):
    """The authenticated user, with teams and scopes."""

    username = serializers.CharField()
    kind = serializers.ChoiceField(
        AccountKind.choices, help_text="Whether you are a person or a service account."
    )
    email = serializers.CharField(allow_blank=True, help_text="Your e-mail address.")
    is_operator = serializers.BooleanField(help_text="Whether you are an operator, as in `roles`.")
    is_approver = serializers.BooleanField(help_text="Whether you are an approver, as in `roles`.")
    roles = serializers.ListField(
        child=serializers.ChoiceField(SiteRole.choices), help_text="Your site roles."
    )
    teams = OwnTeamSerializer(many=True, help_text="Your teams, with your role in each.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices), help_text="Scopes of this request."
    )
    token = TokenSerializer(allow_null=True, help_text="Token of this request; null with a session.")

    def to_representation(self, user_data: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "username": user_data["username"],
            "kind": user_data["kind"],
            "email": user_data["email"],
            "is_operator": user_data["is_operator"],
            "is_approver": user_data["is_approver"],
            "roles": list(user_data["roles"]),
            "teams": [
                {"slug": place.slug, "name": place.name, "role": place.role} for place in user_data["teams"]
            ],
            "scopes": list(user_data["scopes"]),
            "token": TokenSerializer().to_representation(user_data["token"]) if user_data["token"] else None,
        }
