"""REST serializers of sign-in providers, for administrators."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.common.api import StrictSerializer
from portal.common.problem_serializers import ReasonSerializer
from portal.people.identity.decisions import Effect
from portal.people.identity.models import IdentityLink

EFFECTS = [(effect.value, effect.value) for effect in Effect]


class ProviderSerializer(serializers.Serializer[Any]):
    """A sign-in provider, without secrets."""

    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(["oidc", "saml", "ldap"], help_text="Protocol of the provider.")
    enabled = serializers.BooleanField(help_text="Whether people sign in by it at present.")
    address = serializers.CharField(help_text="Issuer, address of the sign-in, or of the directory.")
    accounts = serializers.IntegerField(help_text="How many accounts are linked to it.")
    last_sign_in_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last sign-in.")
    missing_teams = serializers.ListField(
        child=serializers.CharField(), help_text="Teams that its rules name and that are not there."
    )


class ProviderListSerializer(serializers.Serializer[Any]):
    """All sign-in providers."""

    results = ProviderSerializer(many=True, help_text="The rows, in the order of the list.")


class PreviewRequestSerializer(StrictSerializer):
    claims = serializers.DictField(help_text="What the provider would say of somebody.")

    examples = {"claims": {"sub": "248289761001", "preferred_username": "anna", "groups": ["vision"]}}


class RefusalSerializer(ReasonSerializer):
    """A reason with message and next action."""

    detail = serializers.CharField(help_text="The reason in a sentence.")
    next_action = serializers.CharField(allow_blank=True)


class PreviewTeamSerializer(serializers.Serializer[Any]):
    """A membership that a sign-in would change."""

    team = serializers.CharField()
    role = serializers.CharField(allow_blank=True, help_text="Afterwards; empty where it ends.")
    effect = serializers.ChoiceField(EFFECTS, help_text="How the membership would change.")
    by_rule = serializers.BooleanField(help_text="Whether the rules could take it away again.")


class PreviewRoleSerializer(serializers.Serializer[Any]):
    """A site role that a sign-in would change."""

    role = serializers.CharField(help_text="Site role.")
    effect = serializers.ChoiceField(EFFECTS, help_text="How the role would change.")


class PreviewSerializer(serializers.Serializer[Any]):
    """What a sign-in with these claims would do. Nothing has been changed."""

    action = serializers.ChoiceField(
        ["refuse", "create", "link", "sign_in"], help_text="What the sign-in would do."
    )
    username = serializers.CharField(allow_blank=True)
    refusal = RefusalSerializer(allow_null=True, help_text="Why it would be refused; null if it would not.")
    linked_by = serializers.CharField(allow_blank=True, help_text="How the account comes to be linked now.")
    email = serializers.CharField(allow_blank=True, help_text="The verified address.")
    unverified_email = serializers.CharField(
        allow_blank=True,
        help_text="E-mail address that the provider has not verified; empty if there is none.",
    )
    first_name = serializers.CharField(allow_blank=True, help_text="First name, from the provider.")
    last_name = serializers.CharField(allow_blank=True, help_text="Last name, from the provider.")
    groups = serializers.ListField(child=serializers.CharField(), help_text="Groups, from the provider.")
    mfa = serializers.BooleanField(help_text="Whether it counts as a sign-in with a second factor.")
    teams = PreviewTeamSerializer(many=True, help_text="Memberships that the sign-in would change.")
    roles = PreviewRoleSerializer(many=True, help_text="Site roles that the sign-in would change.")
    problems = RefusalSerializer(many=True, help_text="What rules ask for and cannot be.")


class LookUpRequestSerializer(StrictSerializer):
    username = serializers.CharField(
        max_length=150, help_text="As it would be typed on the sign-in page. No password is needed."
    )


class LookUpSerializer(serializers.Serializer[Any]):
    """A user's attributes in a directory, and what their sign-in would do. Nothing has been changed."""

    claims = serializers.DictField(help_text="Attributes and groups, without passwords and keys.")
    outcome = PreviewSerializer(help_text="What a sign-in would do.")


class IdentityLinkSerializer(serializers.ModelSerializer[IdentityLink]):
    """A link between an account and an identity at the provider."""

    username = serializers.CharField(source="user.username")
    linked_by = serializers.CharField(source="how", help_text="How the account was linked.")

    class Meta:
        model = IdentityLink
        fields = ["username", "subject", "expected", "linked_by", "created_at", "last_sign_in_at"]
        read_only_fields = fields


class IdentityLinkCreateSerializer(StrictSerializer):
    """Requires either `subject` or `expected`."""

    username = serializers.CharField(max_length=32)
    subject = serializers.CharField(
        max_length=255,
        required=False,
        allow_blank=True,
        default="",
        help_text="Subject at the provider, as in its tokens.",
    )
    expected = serializers.CharField(
        max_length=150,
        required=False,
        allow_blank=True,
        default="",
        help_text="The name that the provider will give.",
    )
