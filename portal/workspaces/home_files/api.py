"""REST API of the files of a home, addressed by one of the workspaces that use it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from portal.common.api import ApiView, StrictSerializer, UserRequest, body_of, operation, routes
from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of
from portal.common.scopes import Scope
from portal.workspaces import selectors
from portal.workspaces.home_files import services
from portal.workspaces.home_files.codes import FileCode
from portal.workspaces.models import Workspace

SCOPES = {"*": Scope.WORKSPACES_CONNECT}
"""A home is as private as the workspaces that use it."""
MAX_OFFSET = 10_000_000
_PATH_WORDS = (
    "Path in the home, without a leading `/`. Bytes that are not printable UTF-8, and `%`, are encoded as "
    "`%XX`."
)
PATH = OpenApiParameter(
    "path",
    {"type": "string", "minLength": 0},
    description=f"{_PATH_WORDS} Empty for the home itself.",
)
OFFSET = OpenApiParameter("offset", int, description="Number of entries to skip.")


class FileEntrySerializer(serializers.Serializer[Any]):
    """An entry of a folder."""

    name = serializers.CharField(help_text="Name for people, with escapes for unprintable characters.")
    path = serializers.CharField(help_text="Path to use in requests.")
    kind = serializers.ChoiceField(
        ["file", "folder", "link", "other"],
        help_text="Whether it is a file, a folder, a link or something else.",
    )
    size_bytes = serializers.IntegerField(help_text="Size in bytes.")
    changed_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last change.")


class FileListingSerializer(serializers.Serializer[Any]):
    """A page of a folder: folders first, then by name."""

    path = serializers.CharField(help_text="Path in the home folder; empty for all of it.")
    total = serializers.IntegerField(help_text="Total number of entries.")
    offset = serializers.IntegerField(help_text="Number of entries before these.")
    entries = FileEntrySerializer(many=True, help_text="The files and folders.")


class _Path(StrictSerializer):
    path = serializers.CharField(max_length=services.MAX_PATH, trim_whitespace=False, help_text=_PATH_WORDS)

    examples = {"path": "data/train.csv"}


class FilePathSerializer(_Path):
    """The path of a file or folder."""


class FileRenameSerializer(_Path):
    to = serializers.CharField(
        max_length=services.MAX_PATH,
        trim_whitespace=False,
        help_text="New path. An existing file is not replaced.",
    )

    examples = {"to": "data/training.csv"}


class FileDeleteSerializer(StrictSerializer):
    paths = serializers.ListField(
        child=serializers.CharField(max_length=services.MAX_PATH, trim_whitespace=False),
        max_length=100,
        help_text="Paths in the home folder.",
    )

    examples = {"paths": ["data/old.csv"]}


class FileDownloadSerializer(StrictSerializer):
    path = serializers.CharField(
        max_length=services.MAX_PATH, trim_whitespace=False, allow_blank=True, help_text=_PATH_WORDS
    )
    form = serializers.ChoiceField(
        list(services.FORMS),
        default="file",
        help_text="Format of the download. `zip` and `tar` are for folders.",
    )

    examples = {"path": "data/train.csv"}


class FileUploadSerializer(_Path):
    replace = serializers.BooleanField(
        default=False, help_text="Whether to replace an existing file at this path."
    )


class FileTransferSerializer(serializers.Serializer[Any]):
    """A single-use URL for a file transfer."""

    url = serializers.CharField(
        help_text="Single-use URL. Valid for 2 minutes (GET) or 1 hour (PUT, with `Content-Length`)."
    )


class FilesView(ApiView):
    tag = "files"
    operation_ids = {"get": "listFiles"}
    scopes = SCOPES
    query_params = frozenset({"path", "offset"})
    may_be_empty = frozenset({"path"})

    @operation(
        "List files",
        description=f"For the owner of the home. Returns up to {services.PAGE} entries at a time.",
        responses={200: FileListingSerializer},
        parameters=[PATH, OFFSET],
        errors=[400, 404, 409, 503],
    )
    def get(self, request: UserRequest, workspace_id: UUID) -> Response:
        offset = request.query_params.get("offset", "0")
        if not (offset.isascii() and offset.isdecimal() and int(offset) <= MAX_OFFSET):
            refused = Reason(FileCode.OFFSET_INVALID, {"maximum": MAX_OFFSET})
            raise InvalidInput(refused, errors={"offset": [next_action_of(refused)]})
        listing = services.listing(
            actor=request.user,
            workspace=_workspace(request, workspace_id),
            path=request.query_params.get("path", ""),
            offset=int(offset),
        )
        return Response(FileListingSerializer(listing).data)


class FoldersView(ApiView):
    tag = "files"
    operation_ids = {"post": "createFolder"}
    scopes = SCOPES

    @operation(
        "Create a folder",
        request=FilePathSerializer,
        responses={204: None},
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        services.make_folder(actor=request.user, workspace=workspace, **body_of(request, FilePathSerializer))
        return Response(status=204)


class RenameView(ApiView):
    tag = "files"
    operation_ids = {"post": "renameFile"}
    scopes = SCOPES

    @operation(
        "Rename or move a file or folder",
        request=FileRenameSerializer,
        responses={204: None},
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        services.rename(actor=request.user, workspace=workspace, **body_of(request, FileRenameSerializer))
        return Response(status=204)


class DeleteView(ApiView):
    tag = "files"
    operation_ids = {"post": "deleteFiles"}
    scopes = SCOPES

    @operation(
        "Delete files and folders",
        description="Permanent. Folders are deleted with their contents.",
        request=FileDeleteSerializer,
        responses={204: None},
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        services.delete(actor=request.user, workspace=workspace, **body_of(request, FileDeleteSerializer))
        return Response(status=204)


class DownloadsView(ApiView):
    tag = "files"
    operation_ids = {"post": "createFileDownload"}
    scopes = SCOPES

    @operation(
        "Create a download",
        description="Returns a single-use URL of the file, or of the folder as zip or tar.",
        request=FileDownloadSerializer,
        responses={201: FileTransferSerializer},
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        values = body_of(request, FileDownloadSerializer)
        url = services.download_url(actor=request.user, workspace=workspace, **values)
        return Response({"url": url}, status=201, headers={"Location": url})


class UploadsView(ApiView):
    tag = "files"
    operation_ids = {"post": "createFileUpload"}
    scopes = SCOPES

    @operation(
        "Create an upload",
        description=(
            "Returns a single-use URL for one PUT of the file with a `Content-Length`. The file appears "
            "under its name once the upload is complete."
        ),
        request=FileUploadSerializer,
        responses={201: FileTransferSerializer},
        errors=[400, 404, 409, 415, 503],
    )
    def post(self, request: UserRequest, workspace_id: UUID) -> Response:
        workspace = _workspace(request, workspace_id)
        values = body_of(request, FileUploadSerializer)
        url = services.upload_url(actor=request.user, workspace=workspace, **values)
        return Response({"url": url}, status=201, headers={"Location": url})


def _workspace(request: UserRequest, workspace_id: UUID) -> Workspace:
    return selectors.workspace_by_id(request.user, workspace_id)


_HERE = "workspaces/<uuid:workspace_id>/files"
urlpatterns = [
    *routes(_HERE, FilesView, "workspace-files"),
    *routes(f"{_HERE}/folders", FoldersView, "workspace-files-folders"),
    *routes(f"{_HERE}/rename", RenameView, "workspace-files-rename"),
    *routes(f"{_HERE}/delete", DeleteView, "workspace-files-delete"),
    *routes(f"{_HERE}/downloads", DownloadsView, "workspace-files-downloads"),
    *routes(f"{_HERE}/uploads", UploadsView, "workspace-files-uploads"),
]
