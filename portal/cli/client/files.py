"""`client.files`"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import httpx

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of


class Files(Resource):
    """Files of the home used by a workspace."""

    def list(self, workspace_id: str, path: str = "") -> Iterator[JsonObject]:
        """Yield the entries of a folder."""
        offset = 0
        while True:
            page = self._transport.get(_path(workspace_id), {"path": path, "offset": offset})
            yield from page["entries"]
            offset += len(page["entries"])
            if not page["entries"] or offset >= page["total"]:
                return

    def create_folder(self, workspace_id: str, path: str) -> None:
        """Create a folder in an existing one."""
        self._transport.post_without_answer(_path(workspace_id, "folders"), {"path": path})

    def delete(self, workspace_id: str, paths: Sequence[str]) -> None:
        """Delete files and folders permanently."""
        self._transport.post_without_answer(_path(workspace_id, "delete"), {"paths": paths})

    def download_url(self, workspace_id: str, **file: Any) -> str:
        """Return a single-use URL for a download: `path` and `form`."""
        return str(self._transport.post(_path(workspace_id, "downloads"), file)["url"])

    def upload_url(self, workspace_id: str, **file: Any) -> str:
        """Return a single-use URL for an upload: `path`; optional is `replace`."""
        return str(self._transport.post(_path(workspace_id, "uploads"), file)["url"])

    def transfer(self, method: str, url: str, **options: Any) -> AbstractContextManager[httpx.Response]:
        """Send a request to a URL of `download_url` or `upload_url`."""
        return self._transport.transfer(method, url, **options)


def _path(workspace_id: str, *segments: str) -> str:
    return path_of("workspaces", workspace_id, "files", *segments)
