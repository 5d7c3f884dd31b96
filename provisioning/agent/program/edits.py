"""Time of the last save in an editor, from the times of files.

- JupyterLab saves changed documents every 2 minutes: the files of notebooks and consoles with a session.
- VS Code keeps a local history of saved files, and by default saves 1 s after a change.
"""

# ruff: noqa: PTH116, PTH118, PTH208, UP031

from __future__ import annotations

import os
import time

from .http_json import http_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILES = 2000
HISTORY = ".local/share/code-server/User/History"
"""VS Code's local history: one folder for each file, with one file for each save."""


def last_edit(activity: str, home: str, port: int, token: str) -> str | None:
    """Return the time of the last save as ISO 8601 in UTC; None if there was none, or it is unknown."""
    if activity == "jupyter":
        paths = open_documents(home, port, token)
    elif activity == "code-server":
        paths = saved_files(home)
    else:
        return None
    times = []
    for path in paths[:MAX_FILES]:
        try:
            times.append(os.stat(path).st_mtime)
        except OSError:
            continue  # renamed or deleted
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(times))) if times else None


def open_documents(home: str, port: int, token: str) -> list[str]:
    """Return the files of Jupyter Server's sessions inside `home`."""
    try:
        status, sessions = http_json("GET", "http://127.0.0.1:%d/api/sessions" % port, token, None, 5.0)
    except OSError:
        return []
    if status != 200 or not isinstance(sessions, list):
        return []
    names: list[Any] = [session.get("path") for session in sessions if isinstance(session, dict)]
    root = os.path.realpath(home)
    paths = [
        os.path.realpath(os.path.join(root, name.lstrip("/"))) for name in names if isinstance(name, str)
    ]
    return [path for path in paths if path.startswith(root + os.sep)]


def saved_files(home: str) -> list[str]:
    """Return the folders of VS Code's local history: a save changes the time of its file's folder."""
    folder = os.path.join(home, HISTORY)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []
