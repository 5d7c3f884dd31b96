"""Creates passes for the front door (`portal.common.passes`) and removes them.

A pass is valid while everything it depends on is in memory; when a key changes, the passes that depend on it
end. Failures end passes too. Each second needs its own link, which the process creates ahead, and only while
no Redis notification is unread. The passes of a process that has died, hangs or has lost Redis therefore
admit no request after 2 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 10.0
"""Maximum lifetime of a pass in seconds. The next request uses forward-auth, which renews the session."""
BEAT_S = 0.4
RETRY_S = 0.05
BROKEN_S = 5.0
MAX_HELD = 4096
MAX_PER_WORKSPACE = 32
_PRIVATE, _SHARED = 0o700, 0o750
"""Permissions of the folders."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass: `credential` admits to the start `generation` of `workspace`.

    `kind` and `secret` authenticate to its app. `keys` are the Redis keys that the pass depends on.
    """

    workspace: str
    credential: str
    generation: str
    kind: str
    secret: str
    keys: frozenset[str]

    @property
    def path(self) -> str:
        return f"{self.workspace}/{self.credential},{self.generation},{self.kind},{self.secret}"


@dataclass(slots=True)
class _ValidPass:
    """A valid pass until `timer` ends it. `latest_end` is on the loop's clock."""

    pass_: Pass
    latest_end: float
    timer: asyncio.TimerHandle


class Passes:
    """The passes of this process, in a folder below `folder/key`.

    Not thread-safe: use it from one event loop. `is_fresh` returns whether all changes reported by Redis are
    processed. With `shared`, the group of this process can read them, for a front door that runs as a
    separate user (docs/adr/0076-door-account.md).
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        is_fresh: Callable[[], Awaitable[bool]],
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._key = key
        self._is_fresh = is_fresh
        self._mode = _SHARED if shared else _PRIVATE
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._home = self._held = -1
        self._name = ""
        self._passes: dict[tuple[str, str], _ValidPass] = {}
        self._by_key: dict[str, set[tuple[str, str]]] = {}
        self._of_workspace: Counter[str] = Counter()
        self._wake_up = asyncio.Event()

    def start(self) -> None:
        """Start the background task in the running loop. Idempotent."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="berth-passes")

    async def close(self) -> None:
        """End all passes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end_all()

    @property
    def available(self) -> bool:
        """Whether passes can be created now."""
        return self._held >= 0

    def has(self, workspace: str, credential: str) -> bool:
        return (workspace, credential) in self._passes

    def add(self, new: Pass, *, for_s: float) -> None:
        """Create a pass for `for_s` seconds, at most `LONGEST_S`.

        Do not await between the reads of `is_fresh` and memory and this call.
        """
        place = (new.workspace, new.credential)
        full = len(self._passes) >= MAX_HELD or self._of_workspace[new.workspace] >= MAX_PER_WORKSPACE
        if not self.available or for_s <= 0 or place in self._passes or full:
            return
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(new.workspace, self._mode, dir_fd=self._held)
            os.close(os.open(new.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=self._held))
        except OSError as error:
            self._disable(error)
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(min(for_s, LONGEST_S), self._end, place)
        self._passes[place] = _ValidPass(new, loop.time() + LONGEST_S, timer)
        self._of_workspace[new.workspace] += 1
        for key in new.keys:
            self._by_key.setdefault(key, set()).add(place)
        self._wake_up.set()

    def prolong(self, pass_: Pass, *, for_s: float) -> bool:
        """Extend a valid pass to `for_s` seconds from now, never past its `LONGEST_S`.

        Do not await between the reads of memory and this call. Returns `False` if the pass is not valid or
        cannot be extended.
        """
        place = (pass_.workspace, pass_.credential)
        active = self._passes.get(place)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + for_s
        if active is None or active.pass_ != pass_ or ends_at > active.latest_end:
            return False
        active.timer.cancel()
        active.timer = loop.call_at(ends_at, self._end, place)
        return True

    def end(self, pass_: Pass) -> None:
        """End this pass. Idempotent."""
        place = (pass_.workspace, pass_.credential)
        if place in self._passes and self._passes[place].pass_ == pass_:
            self._end(place)

    def changed(self, keys: Iterable[str] | None) -> None:
        """End the passes that depend on `keys`, or all if it is `None`."""
        if keys is None:
            if self._passes:
                self._end_all()
        else:
            for key in keys:
                for place in tuple(self._by_key.get(key, ())):
                    self._end(place)
        self._wake_up.set()

    def _end(self, place: tuple[str, str]) -> None:
        entry = self._passes.pop(place, None)
        if entry is None:
            return
        ended = entry.pass_
        entry.timer.cancel()
        for key in ended.keys:
            self._by_key[key].discard(place)
            if not self._by_key[key]:
                del self._by_key[key]
        self._of_workspace[ended.workspace] -= 1
        last = not self._of_workspace[ended.workspace]
        if last:
            del self._of_workspace[ended.workspace]
        try:
            os.unlink(ended.path, dir_fd=self._held)
            if last:
                os.rmdir(ended.workspace, dir_fd=self._held)
        except OSError as error:
            self._disable(error)

    async def _run(self) -> None:
        while True:
            try:
                if not self.available:
                    self._open()
                self._wake_up.clear()
                if not await self._is_fresh() or not self.available:
                    await asyncio.sleep(RETRY_S)
                    continue
                self._beat()
                with contextlib.suppress(TimeoutError):
                    # Without passes no links for the seconds are needed.
                    async with asyncio.timeout(BEAT_S if self._passes else None):
                        await self._wake_up.wait()
            except OSError as error:
                self._disable(error)
                await asyncio.sleep(BROKEN_S)

    def _open(self) -> None:
        """Create a private folder for this process, and remove what other processes left behind."""
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=self._mode)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(folder)
            is_accessible_to_others = status.st_mode & 0o077 & ~self._mode
            is_foreign = status.st_uid != os.geteuid() or (
                self._mode != _PRIVATE and status.st_gid != os.getegid()
            )
            if is_foreign or is_accessible_to_others:
                raise PermissionError(errno.EPERM, "is not this user's alone", str(self._folder))
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._key, self._mode, dir_fd=folder)
            self._home = os.open(self._key, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        for name in sorted(_names(self._home), key=str.isdigit, reverse=True):
            self._remove(name)
        self._name = f"held-{secrets.token_hex(8)}"
        os.mkdir(self._name, self._mode, dir_fd=self._home)
        self._held = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._home)

    def _remove(self, name: str) -> None:
        if name.startswith("held-"):
            shutil.rmtree(name, ignore_errors=True, dir_fd=self._home)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._home)

    def _beat(self) -> None:
        """Enable the current and the next second, and remove links of other seconds."""
        now = int(self._clock())
        seconds = {str(now), str(now + 1)}
        for second in sorted(seconds):
            coming = f"next-{self._name}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(coming, dir_fd=self._home)
            os.symlink(self._name, coming, dir_fd=self._home)
            os.replace(coming, second, src_dir_fd=self._home, dst_dir_fd=self._home)
        for name in _names(self._home):
            if name.isdigit() and name not in seconds:
                self._remove(name)

    def _disable(self, error: OSError) -> None:
        log.warning("passes are off, every request goes to forward-auth: %s", error)
        self._end_all()

    def _end_all(self) -> None:
        """End all passes at once. The links of the seconds go first, which disables every pass."""
        for active in self._passes.values():
            active.timer.cancel()
        self._passes.clear()
        self._by_key.clear()
        self._of_workspace.clear()
        self._wake_up.set()
        home, folder, name = self._home, self._held, self._name
        if home >= 0:
            with contextlib.suppress(OSError):
                for second in _names(home):
                    if second.isdigit():
                        self._remove(second)
            with contextlib.suppress(OSError):
                self._remove(name)
        self._home = self._held = -1
        for opened in (home, folder):
            if opened >= 0:
                os.close(opened)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
