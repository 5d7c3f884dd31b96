"""`client.packages`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Packages(Resource):
    """Packages that a user has installed on top of a workspace's environment."""

    def get(self, workspace_id: str) -> JsonObject:
        """Return the installed packages."""
        return self._transport.get(path_of("workspaces", workspace_id, "packages"))

    def reset(self, workspace_id: str) -> JsonObject:
        """Schedule the removal of the packages at the next start."""
        return self._transport.post(path_of("workspaces", workspace_id, "packages", "reset"))

    def cancel_reset(self, workspace_id: str) -> JsonObject:
        """Cancel the scheduled removal."""
        return self._transport.post(path_of("workspaces", workspace_id, "packages", "reset", "cancel"))

    def save(self, workspace_id: str, *, name: str, everybody: bool = False) -> JsonObject:
        """Create an environment from the packages, for the workspace's team or for all teams."""
        body = {"name": name, "everybody": everybody}
        return self._transport.post(path_of("workspaces", workspace_id, "packages", "save"), body)
