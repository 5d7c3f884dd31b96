"""Jupyter Server extension that lists folders reliably while their files change.

Jupyter Server reads the names in a folder and then looks up each of them. If a file is renamed or deleted
meanwhile, it returns 404 for the folder, and JupyterLab shows “Directory not found”. This extension repeats
the listing.
"""

from __future__ import annotations

import functools
from typing import Any

from jupyter_server.services.contents.manager import (  # type: ignore[import-not-found]
    AsyncContentsManager,
)
from jupyter_server.utils import ensure_async  # type: ignore[import-not-found]
from tornado import web  # type: ignore[import-not-found,import-untyped,unused-ignore]

MAX_ATTEMPTS = 5


def retry_folder_listing(manager: Any) -> None:
    """Make `manager` retry a 404 for a folder that exists."""
    get = manager.get

    @functools.wraps(get)
    async def get_with_retries(path: str, *args: Any, **kwargs: Any) -> Any:
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return await ensure_async(get(path, *args, **kwargs))
            except web.HTTPError as error:
                if error.status_code != 404 or not await ensure_async(manager.dir_exists(path)):
                    raise
        return await ensure_async(get(path, *args, **kwargs))

    manager.get = get_with_retries


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    # Callers of a synchronous manager may not await its result.
    if isinstance(serverapp.contents_manager, AsyncContentsManager):
        retry_folder_listing(serverapp.contents_manager)
