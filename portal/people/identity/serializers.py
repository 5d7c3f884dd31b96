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
    enabled = serializers.BooleanField(help_text="Whether people can sign in with it.")
    address = serializers.CharField(help_text="Issuer URL, sign-in URL or directory address.")
    accounts = serializers.IntegerField(help_text="Number of linked accounts.")
    last_sign_in_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last sign-in.")
    missing_teams = serializers.ListField(
        child=serializers.CharField(), help_text="Slugs of teams in its rules that do not exist."
    )


class ProviderListSerializer(serializers.Serializer[Any]):
    """All sign-in providers."""

    results = ProviderSerializer(many=True, help_text="The items, in list order.")


class PreviewRequestSerializer(StrictSerializer):
    claims = serializers.DictField(help_text="Claims as the provider would send them.")

    examples = {"claims": {"sub": "248289761001", "preferred_username": "anna", "groups": ["vision"]}}


class RefusalSerializer(ReasonSerializer):
    """A reason with message and next action."""

    detail = serializers.CharField(help_text="The reason in a sentence.")
    next_action = serializers.CharField(allow_blank=True)


class PreviewTeamSerializer(serializers.Serializer[Any]):
    """A membership that a sign-in would change."""

    team = serializers.CharField()
    role = serializers.CharField(
        allow_blank=True, help_text="Role after the sign-in; empty if the membership ends."
    )
    effect = serializers.ChoiceField(EFFECTS, help_text="Change of the membership.")
    by_rule = serializers.BooleanField(help_text="Whether the provider's rules can remove the membership.")


class PreviewRoleSerializer(serializers.Serializer[Any]):
    """A site role that a sign-in would change."""

    role = serializers.CharField(help_text="Site role.")
    effect = serializers.ChoiceField(EFFECTS, help_text="Change of the role.")


class PreviewSerializer(serializers.Serializer[Any]):
    """Effects of a sign-in with these claims. Nothing has been changed."""

    action = serializers.ChoiceField(
        ["refuse", "create", "link", "sign_in"], help_text="Action of the sign-in."
    )
    username = serializers.CharField(allow_blank=True)
    refusal = RefusalSerializer(allow_null=True, help_text="Why it would be refused; null if it would not.")
    linked_by = serializers.CharField(allow_blank=True, help_text="How the sign-in would link the account.")
    email = serializers.CharField(allow_blank=True, help_text="Verified e-mail address, from the provider.")
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
    problems = RefusalSerializer(many=True, help_text="Rules that cannot be applied, with reasons.")


class LookUpRequestSerializer(StrictSerializer):
    username = serializers.CharField(
        max_length=150, help_text="Username as entered on the sign-in page. No password is needed."
    )


class LookUpSerializer(serializers.Serializer[Any]):
    """A user's attributes in a directory, and the effects of their sign-in. Nothing has been changed."""

    claims = serializers.DictField(help_text="Attributes and groups, without passwords and keys.")
    outcome = PreviewSerializer(help_text="Effects of the sign-in.")


class IdentityLinkSerializer(serializers.ModelSerializer[IdentityLink]):
    """A link between an account and an identity at the provider."""

    username = serializers.CharField(source="user.username")
    linked_by = serializers.CharField(source="how", help_text="Method by which the account was linked.")

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
        help_text="E-mail address or name that the provider will send at the first sign-in.",
    )
