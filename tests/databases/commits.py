"""`on_commit` callbacks in tests that run inside a transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class CommitsInTests:
    """Runs `on_commit` callbacks as soon as only the test's own transaction is open.

    Goes before Django's `DatabaseWrapper`. A test marked `django_db` runs inside a transaction that is rolled
    back, so a service's outermost transaction is a savepoint. Its release corresponds to the commit in
    production. Without a test transaction nothing changes.
    """

    atomic_blocks: list[Any]
    run_on_commit: list[tuple[set[str], Callable[[], object], bool]]
    needs_rollback: bool

    def savepoint_commit(self, sid: str) -> None:
        super().savepoint_commit(sid)  # type: ignore[misc]
        self._run_due()

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> None:
        super().on_commit(func, robust)  # type: ignore[misc]
        self._run_due()

    def _run_due(self) -> None:
        """Like Django's `run_and_clear_commit_hooks`, which refuses to run inside a transaction."""
        blocks = self.atomic_blocks
        if not blocks or self.needs_rollback or not all(block._from_testcase for block in blocks):
            return
        due, self.run_on_commit = self.run_on_commit, []
        for _, callback, robust in due:
            try:
                callback()
            except Exception:
                if not robust:
                    raise
                log.exception("A robust callback failed")
