"""REST API of home archives, addressed by one of the workspaces that use the home."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import (
    ApiView,
    StrictSerializer,
    UserRequest,
    body_of,
    operation,
    routes,
)
from portal.common.problem_serializers import ReasonSerializer
from portal.workspaces import selectors
from portal.workspaces.home_files.api import SCOPES
from portal.workspaces.home_files.archive_presenters import problem_text
from portal.workspaces.homes import archives as home_archives
from portal.workspaces.models import HomeArchive, Workspace


class HomeArchiveSerializer(serializers.ModelSerializer[HomeArchive]):
    """An archive of a home folder, on the node where it was created."""

    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    node = serializers.CharField(source="node_name", help_text="Name of the machine that has it.")
    reason = serializers.SerializerMethodField(help_text="Why it waits or failed; null for none.")
    message = serializers.SerializerMethodField(help_text="Reason, as a sentence.")

    class Meta:
        model = HomeArchive
        fields = [
            "id", "name", "owner", "team", "pool", "node", "state", "size_bytes", "home_bytes", "entries",
            "left_out", "bytes_done", "asked_at", "made_at", "restored_at", "reason", "message",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "size_bytes": {"help_text": "Size of the archive on disk, in bytes."},
            "home_bytes": {"help_text": "Total size of the files in it, in bytes."},
            "left_out": {"help_text": "Number of pipes, sockets and devices that were skipped."},
            "bytes_done": {"help_text": "Progress of the current operation, in bytes before compression."},
            "restored_at": {"help_text": "When the home was last restored from it."},
        }

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, archive: HomeArchive) -> dict[str, Any] | None:
        return archive.reason or None

    def get_message(self, archive: HomeArchive) -> str:
        return problem_text(archive)


class NewHomeArchiveSerializer(StrictSerializer):
    name = serializers.CharField(
        max_length=home_archives.MAX_NAME,
        required=False,
        allow_blank=True,
        default="",
        help_text="Name of the archive. Default: the current time.",
    )


class ArchivesView(ApiView):
    tag = "files"
    operation_ids = {"get": "listArchives", "post": "createArchive"}
    scopes = SCOPES

    @operation(
        "List archives of a home folder",
        description="For the owner of the home that the workspace uses. Newest first.",
        responses={200: HomeArchiveSerializer(many=True)},
        errors=[404, 409],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        archives = home_archives.archives_of_home(request.user, _workspace(request, workspace_id))
        return Response(HomeArchiveSerializer(archives, many=True).data)

    @operation(
        "Create an archive of a home folder",
        description=(
            "Requires that no workspace uses the home. New workspaces wait until the archive is complete."
        ),
        request=NewHomeArchiveSerializer,
        responses={201: HomeArchiveSerializer},
        retry_after_s=5,
        errors=[400, 404, 409, 415],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        body = body_of(request, NewHomeArchiveSerializer)
        archive = home_archives.create(actor=request.user, workspace=workspace, name=body["name"])
        location = reverse("api:workspace-files-archive", args=[workspace_id, archive.pk])
        return Response(HomeArchiveSerializer(archive).data, status=201, headers={"Location": location})


class ArchiveView(ApiView):
    tag = "files"
    operation_ids = {"get": "getArchive", "delete": "deleteArchive"}
    scopes = SCOPES

    @operation(
        "Read an archive of a home folder",
        responses={200: HomeArchiveSerializer},
        errors=[404, 409],
    )
    def get(self, request: UserRequest, workspace_id: UUID, archive_id: UUID) -> Response:
        return _answer(request, workspace_id, archive_id)

    @operation(
        "Delete an archive of a home folder",
        description="Permanent. Idempotent.",
        responses={204: None},
        errors=[404, 409],
    )
    def delete(self, request: UserRequest, workspace_id: UUID, archive_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        home_archives.delete(actor=request.user, workspace=workspace, archive_id=archive_id)
        return Response(status=204)


class RestoreView(ApiView):
    tag = "files"
    operation_ids = {"post": "restoreArchive"}
    scopes = SCOPES

    @operation(
        "Restore a home folder from an archive",
        description=(
            "Replaces all files in the home at once when the restore is complete. Requires that no "
            "workspace uses the home."
        ),
        request=None,
        responses={200: HomeArchiveSerializer},
        errors=[404, 409],
    )
    def post(self, request: UserRequest, workspace_id: UUID, archive_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        home_archives.restore(actor=request.user, workspace=workspace, archive_id=archive_id)
        return _answer(request, workspace_id, archive_id)


class CancelView(ApiView):
    tag = "files"
    operation_ids = {"post": "cancelArchive"}
    scopes = SCOPES

    @operation(
        "Cancel the creation or restore of an archive",
        description="Deletes an incomplete archive. A home that is being restored stays unchanged.",
        request=None,
        responses={204: None},
        errors=[404, 409],
    )
    def post(self, request: UserRequest, workspace_id: UUID, archive_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        home_archives.cancel(actor=request.user, workspace=workspace, archive_id=archive_id)
        return Response(status=204)


def _workspace(request: UserRequest, workspace_id: UUID) -> Workspace:
    return selectors.workspace_by_id(request.user, workspace_id)


def _answer(request: UserRequest, workspace_id: UUID, archive_id: UUID) -> Response:
    workspace = _workspace(request, workspace_id)
    archive = home_archives.archive_of_home(request.user, workspace, archive_id)
    return Response(HomeArchiveSerializer(archive).data)


_HERE = "workspaces/<uuid:workspace_id>/files/archives"
_ONE = f"{_HERE}/<uuid:archive_id>"
urlpatterns = [
    *routes(_HERE, ArchivesView, "workspace-files-archives"),
    *routes(_ONE, ArchiveView, "workspace-files-archive"),
    *routes(f"{_ONE}/restore", RestoreView, "workspace-files-archive-restore"),
    *routes(f"{_ONE}/cancel", CancelView, "workspace-files-archive-cancel"),
]
