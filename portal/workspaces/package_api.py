"""REST API of packages installed on top of a workspace's environment."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import reverse
from rest_framework import serializers
from rest_framework.response import Response

from portal.catalog.environments import selectors as environments
from portal.catalog.environments.serializers import EnvironmentSerializer
from portal.common import idempotency
from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.scopes import Scope
from portal.workspaces import own_packages, policies, selectors

SCOPES = {"GET": Scope.WORKSPACES_READ, "*": Scope.WORKSPACES_WRITE}


class OwnPackageSerializer(serializers.Serializer[Any]):
    """A package of the user."""

    name = serializers.CharField()
    version = serializers.CharField(help_text="Installed version.")
    instead_of = serializers.CharField(help_text="Version in the environment, if different; empty for none.")


class OwnPackagesSerializer(serializers.Serializer[Any]):
    """Packages that the owner has installed on top of the workspace's environment."""

    environment = serializers.CharField(
        allow_null=True, help_text="Slug of the software environment; null for the software of the node."
    )
    python = serializers.CharField(help_text="Python version, such as `3.12`; empty if unknown.")
    packages = OwnPackageSerializer(many=True, help_text="The packages, by name.")
    requirements = serializers.CharField(help_text="Requirements list of the same packages, for `save`.")
    shared_with = serializers.ListField(
        child=serializers.CharField(), help_text="Names of your workspaces that share these packages."
    )
    reset_at_next_start = serializers.BooleanField(
        help_text="Whether the next start removes the user's own packages."
    )


class ResetSerializer(serializers.Serializer[Any]):
    """Whether the next start removes the user's packages."""

    reset_at_next_start = serializers.BooleanField(
        help_text="Whether the next start removes the user's own packages."
    )


class SaveSerializer(StrictSerializer):
    """A new environment with the user's packages."""

    name = serializers.CharField(max_length=80)
    slug = serializers.CharField(
        max_length=40, required=False, help_text="Slug. Default: derived from the name."
    )
    description = serializers.CharField(max_length=200, default="", allow_blank=True)
    everybody = serializers.BooleanField(
        default=False,
        help_text=(
            "Whether the environment is for everyone (operators only). Default: for the workspace's team."
        ),
    )


class PackagesView(ApiView):
    tag = "workspaces"
    operation_ids = {"get": "listWorkspacePackages"}
    scopes = SCOPES

    @operation(
        "List your packages in a workspace",
        description=(
            "For the owner of the workspace. Lists packages that you installed on top of its environment, "
            "as reported by its node, even if it is stopped."
        ),
        responses={200: OwnPackagesSerializer},
        errors=[404, 409, 503],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        own = own_packages.read(actor=request.user, workspace=workspace)
        version = workspace.environment_version
        answer = {
            "environment": version.environment.slug if version is not None else None,
            "python": own.python,
            "packages": own.packages,
            "requirements": own_packages.requirements(workspace, own) if own.packages else "",
            "shared_with": [other.name for other in own_packages.sharing(workspace)],
            "reset_at_next_start": own_packages.reset_waits(workspace),
        }
        return Response(OwnPackagesSerializer(answer).data)


class PackagesResetView(ApiView):
    tag = "workspaces"
    operation_ids = {"post": "resetWorkspacePackages"}
    scopes = SCOPES

    @operation(
        "Remove your packages at the next start",
        description="Applies to all your workspaces that share them. `cancel` reverts it until that start.",
        responses={202: ResetSerializer},
        errors=[404, 409],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        selectors.workspace_by_id(request.user, workspace_id)
        own_packages.reset(actor=request.user, workspace_id=workspace_id)
        location = reverse("api:workspace-packages", args=[workspace_id])
        return Response({"reset_at_next_start": True}, status=202, headers={"Location": location})


class PackagesResetCancelView(ApiView):
    tag = "workspaces"
    operation_ids = {"post": "cancelWorkspacePackagesReset"}
    scopes = SCOPES

    @operation(
        "Cancel the removal of your packages",
        description="Possible until the start that would remove them. Idempotent.",
        request=None,
        responses={200: ResetSerializer},
        errors=[404, 409],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        selectors.workspace_by_id(request.user, workspace_id)
        own_packages.cancel_reset(actor=request.user, workspace_id=workspace_id)
        return Response({"reset_at_next_start": False})


class PackagesSaveView(ApiView):
    tag = "workspaces"
    operation_ids = {"post": "saveWorkspacePackages"}
    scopes = {"*": Scope.ENVIRONMENTS_WRITE}

    @operation(
        "Save your packages as an environment",
        description=(
            "For users who can create environments. Creates an environment with the packages of the "
            "workspace's environment and your own, in their current versions, and queues its build."
        ),
        request=SaveSerializer,
        responses={201: EnvironmentSerializer},
        parameters=[idempotency.PARAMETER],
        retry_after_s=10,
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = selectors.workspace_by_id(request.user, workspace_id)
        policies.require_home(request.user, workspace)
        body = body_of(request, SaveSerializer)
        team = None if body.pop("everybody") else workspace.team
        # Ask the node first, because the transaction of the idempotency key must not wait for the node.
        own = own_packages.read(actor=request.user, workspace=workspace)

        def saved() -> Response:
            environment = own_packages.save(
                actor=request.user, workspace=workspace, own=own, team=team, **body
            )
            shown = environments.environment_by_slug(request.user, environment.slug)
            location = reverse("api:environment-detail", args=[environment.slug])
            return Response(EnvironmentSerializer(shown).data, status=201, headers={"Location": location})

        return idempotency.answer_once(request, saved)


_PATH = "workspaces/<uuid:workspace_id>/packages"
urlpatterns = [
    *routes(_PATH, PackagesView, "workspace-packages"),
    *routes(f"{_PATH}/reset", PackagesResetView, "workspace-packages-reset"),
    *routes(f"{_PATH}/reset/cancel", PackagesResetCancelView, "workspace-packages-reset-cancel"),
    *routes(f"{_PATH}/save", PackagesSaveView, "workspace-packages-save"),
]
