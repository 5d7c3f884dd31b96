"""REST API of the secrets of users, teams and templates. Values can be written but not read."""

from __future__ import annotations

from abc import ABC, abstractmethod

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common import etags
from portal.common.api import (
    ReadViewSet,
    Router,
    StrictSerializer,
    UserRequest,
    body_of,
    documented,
    operation,
)
from portal.common.etags import IF_MATCH, TaggedViewSet
from portal.common.scopes import Scope
from portal.people.accounts.mfa.proof import require_fresh
from portal.workspaces.secrets import selectors, services
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Holder, Secret, SecretKind
from portal.workspaces.secrets.places import MAX_KEY, MAX_PATH

SCOPES = {"GET": Scope.SECRETS_READ, "*": Scope.SECRETS_WRITE}
NAME = OpenApiParameter("name", str, OpenApiParameter.PATH, description="Name of the secret.")
SLUG = OpenApiParameter("slug", str, OpenApiParameter.PATH, description="Slug of the team or template.")


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret without its value, which cannot be read."""

    everywhere = serializers.BooleanField(
        help_text=(
            "Whether every workspace of the user or team gets it. Always true in effect for secrets of "
            "templates."
        )
    )
    size_bytes = serializers.IntegerField(help_text="Size in bytes.")
    version = serializers.IntegerField(help_text="Version of the value, from 1.")
    vault_path = serializers.CharField(help_text="Path in Vault; empty if the portal stores the value.")
    vault_key = serializers.CharField(help_text="Key at the path in Vault.")
    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)
    changed_by = serializers.CharField(
        source="changed_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the last user who set the value.",
    )
    delivered_to = serializers.CharField(
        source="delivered_to.username",
        allow_null=True,
        default=None,
        help_text="Owner of the last workspace that received it.",
    )

    class Meta:
        model = Secret
        fields = [
            *("name", "kind", "description", "everywhere", "size_bytes", "version"),
            *("vault_path", "vault_key"),
            *("created_at", "created_by", "changed_at", "changed_by", "delivered_at", "delivered_to"),
        ]
        read_only_fields = fields


class SecretWriteSerializer(StrictSerializer):
    """A value or a path in Vault, with metadata. Omitted fields stay unchanged."""

    value = serializers.CharField(
        max_length=services.MAX_VALUE_BYTES,
        required=False,
        trim_whitespace=False,
        help_text="Value as UTF-8 text, up to 64 KiB. Whitespace is kept.",
    )
    vault_path = serializers.CharField(
        max_length=MAX_PATH,
        required=False,
        allow_blank=True,
        help_text="Path in Vault below the site's mount, instead of a value.",
    )
    vault_key = serializers.CharField(
        max_length=MAX_KEY, required=False, allow_blank=True, help_text="Key at the path in Vault."
    )
    kind = serializers.ChoiceField(
        SecretKind.choices,
        required=False,
        help_text="Whether workspaces get it as an environment variable or as a file.",
    )
    description = serializers.CharField(max_length=services.MAX_DESCRIPTION, required=False, allow_blank=True)
    everywhere = serializers.BooleanField(
        required=False, help_text="Whether every workspace gets it by default."
    )

    examples = {"vault_path": "teams/vision/huggingface", "vault_key": "token"}


class SecretChangeSerializer(StrictSerializer):
    """The fields to change. The value stays unchanged."""

    description = serializers.CharField(max_length=services.MAX_DESCRIPTION, required=False, allow_blank=True)
    everywhere = serializers.BooleanField(
        required=False, help_text="Whether every workspace gets it by default."
    )


class SecretViewSet(TaggedViewSet, ReadViewSet, ABC):
    """Base class of viewsets of secrets."""

    observed = frozenset({"delivered_at", "delivered_to"})
    tag = "secrets"
    queryset = Secret.objects.none()
    serializer_class = SecretSerializer
    scopes = SCOPES
    ordering = ("name", "id")
    missing = SecretCode.NO_SUCH_SECRET
    lookup_field = "name"
    lookup_value_converter = "str"

    @abstractmethod
    def holder(self) -> Holder:
        """Return the holder, if visible to the actor. Raises `NotFound`."""

    def get_queryset(self) -> QuerySet[Secret]:
        return selectors.secrets_of(self.holder())

    def get_object(self) -> Secret:
        return selectors.secret_named(self.holder(), self.kwargs["name"])

    @operation(
        "Set a secret",
        description=(
            "Creates the secret (201), or changes its value or its path in Vault (200). Workspaces get "
            "it at their next start. Values in Vault are read at each start."
        ),
        request=SecretWriteSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer},
        located=False,
        parameters=[NAME, IF_MATCH],
        errors=[400, 404, 409, 412, 415],
    )
    def update(self, request: UserRequest, *, name: str, **_kwargs: str) -> Response:
        require_fresh(request)
        holder = self.holder()
        result = services.put_secret(
            actor=request.user,
            holder=holder,
            name=name,
            expected=etags.expected_versions(request),
            **body_of(request, SecretWriteSerializer),
        )
        shown = selectors.secret_named(holder, result.secret.name)
        return self.answer(shown, status=201 if result.created else 200)

    @operation(
        "Change a secret",
        description="Changes the description and `everywhere`. The value stays unchanged.",
        request=SecretChangeSerializer,
        responses={200: SecretSerializer},
        parameters=[NAME, IF_MATCH],
        errors=[400, 404, 412, 415],
    )
    def partial_update(self, request: UserRequest, **_kwargs: str) -> Response:
        require_fresh(request)
        values = body_of(request, SecretChangeSerializer)
        expected = etags.expected_versions(request)
        row = services.change(actor=request.user, secret=self.get_object(), expected=expected, **values)
        return self.answer(row)

    @operation(
        "Delete a secret",
        description="Running workspaces keep the secret until they stop.",
        responses={204: None},
        parameters=[NAME, IF_MATCH],
        errors=[404, 412],
    )
    def destroy(self, request: UserRequest, **_kwargs: str) -> Response:
        require_fresh(request)
        expected = etags.expected_versions(request)
        services.delete(actor=request.user, secret=self.get_object(), expected=expected)
        return Response(status=204)


@documented(
    list="List your secrets", of="Names and metadata, without values.", retrieve="Read one of your secrets"
)
class OwnSecretViewSet(SecretViewSet):
    operation_ids = {
        "list": "listMySecrets",
        "retrieve": "getMySecret",
        "update": "setMySecret",
        "partial_update": "updateMySecret",
        "destroy": "deleteMySecret",
    }

    def holder(self) -> Holder:
        return self.request.user


@documented(
    list="List a team's secrets",
    of="Visible to users who can see the team. Owners and operators write them.",
    retrieve="Read a secret of a team",
    errors=[404],
)
class TeamSecretViewSet(SecretViewSet):
    operation_ids = {
        "list": "listTeamSecrets",
        "retrieve": "getTeamSecret",
        "update": "setTeamSecret",
        "partial_update": "updateTeamSecret",
        "destroy": "deleteTeamSecret",
    }

    def holder(self) -> Holder:
        return selectors.team_of(self.request.user, self.kwargs["slug"])


@documented(
    list="List a template's secrets",
    of="Visible to users who can see the template. Users who can edit it write them.",
    retrieve="Read a secret of a template",
    errors=[404],
)
class TemplateSecretViewSet(SecretViewSet):
    operation_ids = {
        "list": "listTemplateSecrets",
        "retrieve": "getTemplateSecret",
        "update": "setTemplateSecret",
        "partial_update": "updateTemplateSecret",
        "destroy": "deleteTemplateSecret",
    }

    def holder(self) -> Holder:
        return selectors.template_of(self.request.user, self.kwargs["slug"])


router = Router()
router.register("me/secrets", OwnSecretViewSet, basename="own-secret")
router.register("teams/<slug:slug>/secrets", TeamSecretViewSet, basename="team-secret")
router.register("templates/<slug:slug>/secrets", TemplateSecretViewSet, basename="template-secret")
urlpatterns = router.urls
