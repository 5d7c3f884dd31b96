"""Lets users sign in and stop workspaces when the disk is full.

SQLite has a reserve (`portal.embedded.database_reserve`). If Redis cannot append to its file, it rejects
every write, and thus every command to workers. Its data need not survive, so Redis runs only in memory until
there is space again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from portal.embedded import database_reserve
from portal.embedded.database_reserve import Reserve
from provisioning.service import database_place
from provisioning.service.probes import redis_client

POLL_INTERVAL_S = 2.0
# Free disk space at which Redis saves to disk again.
ENOUGH_BYTES = 256 << 20
_SQLITE = "sqlite:///"
log = logging.getLogger(__name__)


def database_file(environ: Mapping[str, str], home: Path) -> Path | None:
    """Return SQLite's file, or None if `DATABASE_URL` names a server."""
    url = environ.get("DATABASE_URL", "")
    if not url:
        return database_place.database_file(home)
    return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None


class DiskWatch:
    """Checks the disk every two seconds. `say` reports to the operator."""

    def __init__(
        self, *, redis_url: str, redis_dir: Path, database: Path | None, say: Callable[[str], None]
    ) -> None:
        self._redis_url = redis_url
        self._redis_dir = redis_dir
        self._database = database
        self._reserve: Reserve | None = None
        self._say = say

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.to_thread(self.keep_reserve)
                message = await asyncio.to_thread(self.adapt_redis)
                if message:
                    self._say(message)
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            if self._reserve is not None:
                self._reserve.close()

    def keep_reserve(self) -> None:
        """Refill the database's reserve, as far as the disk has space."""
        if self._database is None:
            return
        try:
            if self._reserve is None:
                self._reserve = Reserve(self._database)
            self._reserve.refill()
        except (sqlite3.Error, OSError) as error:
            log.debug("could not keep the database's disk reserve: %s", error)

    def adapt_redis(self) -> str:
        """Disable or enable Redis's file depending on the disk. Returns a message if something changed."""
        # Imported here, because the library is missing before `make up` has run.
        from redis.exceptions import RedisError

        try:
            with redis_client(self._redis_url) as client:
                return self._adapt(client)
        except (RedisError, OSError):
            # Redis is down; the supervisor restarts it.
            return ""

    def _adapt(self, client: Any) -> str:
        persistence = client.info("persistence")
        if persistence["aof_enabled"]:
            if persistence["aof_last_write_status"] == "ok":
                return ""
            client.config_set("appendonly", "no")
            return "the disk is full: Redis keeps its data in memory only. Free some space"
        if database_reserve.free(self._redis_dir / "any") < ENOUGH_BYTES:
            return ""
        client.config_set("appendonly", "yes")
        return "Redis saves to disk again"
