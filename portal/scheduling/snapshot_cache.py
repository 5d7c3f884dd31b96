"""Sites that are kept between uses, since reading ten thousand workspaces anew takes a second.

Previews have one and cycles another, so that nobody who only asks waits for a cycle. A kept site is
brought up to date by the audit log; only cycles grant capacity, one at a time under the queue's lock, and
each has written an entry for what it granted before the next one reads.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from django.db import connection, transaction
from django.utils import timezone

from portal.scheduling import snapshot
from portal.scheduling.snapshot import Site

KEPT_S = 60
"""A site is read anew after this at the latest: grants begin and end by time alone."""


class Standing:
    """One kept site. One thread at a time uses it; what has been taken in it is given back afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Site | None = None

    @contextmanager
    def use(self, now: datetime | None = None) -> Iterator[Site]:
        """The present state. After an error nothing is kept: what was half done is not looked at again."""
        with self._lock:
            now = now or timezone.now()
            site, self._kept = self._kept, None
            age_s = (now - site.read_at).total_seconds() if site is not None else 0.0
            with _no_collection():
                if site is None or not 0 <= age_s < KEPT_S or not snapshot.follow(site, now):
                    site = snapshot.load(now)
            yield site
            site.placer.undo()
            if not _in_transaction():
                self._kept = site
        if self._kept is None:
            # What it has seen of a transaction under way may never come to be.
            transaction.on_commit(partial(self._keep, site))

    def _keep(self, site: Site) -> None:
        with self._lock:
            self._kept = site

    def forget(self) -> None:
        """Read anew the next time: something has changed without an entry in the audit log."""
        with self._lock:
            self._kept = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Objects that come by the hundred thousand to stay must not set off searches for garbage meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _in_transaction() -> bool:
    return connection.in_atomic_block


previews = Standing()
cycles = Standing()


def forget() -> None:
    """Forget both."""
    previews.forget()
    cycles.forget()
