"""REST serializers of users, for administrators."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.events.models import Event
from portal.people.accounts.mfa import factors
from portal.people.accounts.models import AccountKind, AccountState, Role, SecondFactor, SiteRole, User


class PlaceSerializer(StrictSerializer):
    """A membership in a team."""

    team = serializers.CharField(max_length=40, help_text="Slug of the team.")
    role = serializers.ChoiceField(Role.choices, default=Role.MEMBER, help_text="Role in the team.")


class UserSerializer(serializers.ModelSerializer[User]):
    """A user account."""

    # Not an EmailField, whose schema requires a valid address: some accounts have none.
    email = serializers.CharField(help_text="E-mail address of the account; empty for none.")
    kind = serializers.ChoiceField(
        AccountKind.choices, help_text="Whether it is a person or a service account."
    )
    description = serializers.CharField(help_text="Purpose of a service account; empty for people.")
    state = serializers.ChoiceField(AccountState.choices)
    roles = serializers.ListField(
        child=serializers.ChoiceField(SiteRole.choices), help_text="Site roles of the account."
    )
    teams = serializers.SerializerMethodField(help_text="Teams of the account, with its role in each.")
    mfa = serializers.SerializerMethodField(help_text="Whether the account has a second factor.")
    second_factors = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField(source="date_joined")
    last_sign_in_at = serializers.DateTimeField(
        source="last_login", allow_null=True, help_text="Time of the last sign-in."
    )

    class Meta:
        model = User
        fields = [
            "username",
            "kind",
            "description",
            "email",
            "state",
            "roles",
            "teams",
            "mfa",
            "second_factors",
            "created_at",
            "last_sign_in_at",
            "deactivated_at",
        ]
        read_only_fields = fields

    @extend_schema_field(PlaceSerializer(many=True))
    def get_teams(self, user: User) -> list[dict[str, str]]:
        return [{"team": place.team.slug, "role": place.role} for place in user.memberships.all()]

    def get_mfa(self, user: User) -> bool:
        return user.mfa_since is not None

    @extend_schema_field(
        serializers.ListField(
            child=serializers.ChoiceField(SecondFactor.choices),
            allow_null=True,
            help_text="Second factors of the account; null for a service account, which cannot sign in.",
        )
    )
    def get_second_factors(self, user: User) -> list[str] | None:
        return None if user.is_service else [kind.value for kind in factors.kinds_of(user)]


class InvitedUserSerializer(UserSerializer):
    """An invited user. The link is shown only once; a newer one replaces it."""

    invite_url = serializers.SerializerMethodField()
    invite_expires_at = serializers.SerializerMethodField(help_text="When the invitation link expires.")
    mailed = serializers.SerializerMethodField()

    class Meta(UserSerializer.Meta):
        fields = [*UserSerializer.Meta.fields, "invite_url", "invite_expires_at", "mailed"]
        read_only_fields = fields

    @extend_schema_field(serializers.URLField(help_text="Link for the user to set a password."))
    def get_invite_url(self, _user: User) -> str:
        return str(self.context["link"].url)

    @extend_schema_field(serializers.DateTimeField())
    def get_invite_expires_at(self, _user: User) -> Any:
        return serializers.DateTimeField().to_representation(self.context["link"].expires_at)

    @extend_schema_field(serializers.BooleanField(help_text="Whether the link was also sent by e-mail."))
    def get_mailed(self, _user: User) -> bool:
        return bool(self.context["link"].mailed)


class LinkSerializer(serializers.Serializer[Any]):
    """A link to choose a new password, shown only once."""

    reset_url = serializers.URLField(source="url", help_text="Link to choose a new password. It works once.")
    expires_at = serializers.DateTimeField()
    mailed = serializers.BooleanField(help_text="Whether the link was also sent by e-mail.")


class UserCreateSerializer(StrictSerializer):
    username = serializers.CharField(max_length=32)
    email = serializers.EmailField(
        required=False, allow_blank=True, help_text="E-mail address of the account."
    )
    teams = PlaceSerializer(
        many=True, required=False, help_text="Teams to add the account to, with its role in each."
    )
    roles = serializers.ListField(
        child=serializers.ChoiceField(SiteRole.choices),
        required=False,
        help_text="Roles in the whole portal.",
    )

    examples = {"teams": [{"team": "vision", "role": "member"}]}


class UserChangeSerializer(StrictSerializer):
    """Fields to change. Omitted fields stay unchanged."""

    email = serializers.EmailField(
        required=False, allow_blank=True, help_text="E-mail address of the account."
    )
    roles = serializers.ListField(
        child=serializers.ChoiceField(SiteRole.choices),
        required=False,
        help_text="Site roles. Replaces the current ones.",
    )
    teams = PlaceSerializer(
        many=True, required=False, help_text="Team memberships. Replaces the current ones."
    )

    examples = {"teams": [{"team": "vision", "role": "member"}]}


class DeactivateSerializer(StrictSerializer):
    note = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="Reason, for the audit log."
    )


class RevokeSessionsSerializer(StrictSerializer):
    tokens = serializers.BooleanField(
        default=False, help_text="Whether to revoke the user's API tokens, too."
    )


class RevokedSessionsSerializer(serializers.Serializer[Any]):
    """Number of sessions that were revoked."""

    revoked = serializers.IntegerField(help_text="Number of revoked sessions.")


class SignInSerializer(serializers.ModelSerializer[Event]):
    """A sign-in, a refused sign-in, or the end of a session."""

    action = serializers.CharField(
        source="kind", help_text="Sign-in, refused sign-in or end of a session, as a code."
    )

    class Meta:
        model = Event
        fields = ["id", "at", "action", "address", "user_agent", "request_id"]
        read_only_fields = fields
