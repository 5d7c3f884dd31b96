"""The scheduler's kept snapshots in tests."""

from __future__ import annotations

from portal.scheduling import snapshot_cache


def rows_changed() -> None:
    """Say that the test has written rows itself, after something has read a snapshot.

    Snapshots are kept between uses, as in production, and learn of changes from the services alone. Rows
    that a factory or `.update()` writes are seen when the next snapshot is read anew.
    """
    snapshot_cache.forget()
