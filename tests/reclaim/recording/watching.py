"""Reads each stored report of each workspace from the database of the instance."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

POLL_S = 0.5
QUERY = (
    "SELECT workspace_id, heartbeat_at, activity FROM workspaces_workspacestatus"
    " WHERE heartbeat_at IS NOT NULL"
)


class Watcher:
    """A reading thread; `reports[workspace]` has (unix time, figures) of each report."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.reports: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        seen: dict[str, str] = {}
        while not self.ended.wait(POLL_S):
            # Briefly locked by a writer: the next read gets it.
            with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(self._open()) as database:
                for workspace, at, activity in database.execute(QUERY).fetchall():
                    if seen.get(workspace) != at:
                        seen[workspace] = at
                        moment = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
                        name = str(UUID(workspace))
                        self.reports.setdefault(name, []).append((moment, json.loads(activity)))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()
