"""`client.archives`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonList, JsonObject, drop_empty, path_of


class Archives(Resource):
    """Archives of the home used by a workspace."""

    def list(self, workspace_id: str) -> JsonList:
        """Return all archives, newest first."""
        return self._transport.get_array(_path(workspace_id))

    def get(self, workspace_id: str, archive_id: str) -> JsonObject:
        return self._transport.get(_path(workspace_id, archive_id))

    def create(self, workspace_id: str, *, name: str = "") -> JsonObject:
        """Create an archive. The default name is the current time."""
        return self._transport.post(_path(workspace_id), drop_empty({"name": name}))

    def restore(self, workspace_id: str, archive_id: str) -> JsonObject:
        """Replace the home with the archive. Deletes everything that is in the home."""
        return self._transport.post(_path(workspace_id, archive_id, "restore"))

    def cancel(self, workspace_id: str, archive_id: str) -> None:
        """Cancel the current operation on an archive. The home stays unchanged."""
        self._transport.post_without_answer(_path(workspace_id, archive_id, "cancel"))

    def delete(self, workspace_id: str, archive_id: str) -> None:
        """Delete an archive permanently."""
        self._transport.delete(_path(workspace_id, archive_id))


def _path(workspace_id: str, *segments: str) -> str:
    return path_of("workspaces", workspace_id, "files", "archives", *segments)
