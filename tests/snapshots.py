"""The scheduler's cached snapshots in tests."""

from __future__ import annotations

from portal.scheduling import snapshot_cache


def rows_changed() -> None:
    """Tell the snapshot cache that the test has written rows itself after a snapshot was read.

    Snapshots are cached between uses, as in production, and only services announce changes. Rows that a
    factory or `.update()` writes are visible once the next snapshot is read completely.
    """
    snapshot_cache.forget()
