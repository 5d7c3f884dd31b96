"""Archives of homes on the node plane. An order runs for some seconds and reports its progress.

The home's file server does the work in its sandbox, so a crash of the worker loses nothing. A crash of the
server loses the progress of the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local.file_server import Home
from provisioning.drivers.local.home_archives import HomeArchives, HomeChanged
from provisioning.errors import Blame, ProvisioningError, StaleCommand
from provisioning.home_messages import ArchiveCommand, HomeArchived, HomeArchiveOrder
from provisioning.node.homes import homes_of
from provisioning.node.local_settings import driver_for
from provisioning.node.tasks import failure_of
from provisioning.node.worker import app

STEP_S = 8.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.25
DELETE_S = 15.0
REFUSALS = frozenset({"archives_full", "unreadable", "bad_stream", "not_found"})
"""Refusals of the file server that a retry would not change."""


class ArchiveRefused(Exception):
    """The request cannot be executed; fields as `refused`, `about` and `free` of `HomeArchived`."""

    def __init__(self, code: str, about: str = "", free: int = 0) -> None:
        super().__init__(code)
        self.code, self.about, self.free = code, about, free


class ArchiveCutOff(ProvisioningError):
    """The job was interrupted and restarts from the beginning."""

    code = "archive_cut_off"
    blame = Blame.BACKEND


@app.task(name="node.archive_home", soft_time_limit=150, time_limit=160)  # type: ignore[untyped-decorator]
def archive_home(order: dict[str, Any]) -> None:
    """Execute one order and report under its lease."""
    answer = run(messages.load(order, HomeArchiveOrder), now=time.time())
    app.send_task("control.apply_home_archive", kwargs={"answer": messages.dump(answer)}, queue=CONTROL_QUEUE)


def run(order: HomeArchiveOrder, *, now: float) -> HomeArchived:
    """Return the answer for every outcome, including unexpected errors."""
    answer = HomeArchived(order.archive, order.lease, order.do)
    try:
        if now > order.expires_at:
            raise StaleCommand(
                "The node received the command after it had expired. The portal retries automatically."
            )
        homes = homes_of(driver_for(order.pool))
        if homes is None:
            raise ArchiveRefused("not_found")
        home = Home(order.team, order.owner)
        with homes.home_moves(team=order.team, owner=order.owner).exclusive(home):
            archives = homes.home_archives(team=order.team, owner=order.owner)
            try:
                answer = _carry_out(order, answer, archives, home)
            except ArchiveRefused:
                archives.end(home)
                raise
            if answer.done:
                archives.end(home)
            return answer
    except ArchiveRefused as error:
        return replace(answer, refused=error.code, about=error.about, free=error.free)
    except Exception as error:
        return replace(answer, failure=failure_of(error))


def _carry_out(
    order: HomeArchiveOrder, answer: HomeArchived, archives: HomeArchives, home: Home
) -> HomeArchived:
    match order.do:
        case ArchiveCommand.DELETE:
            archives.delete(home, archive=order.archive)
            return replace(answer, done=True)
        case ArchiveCommand.CLEAR:
            placed = archives.complete_install(home, job=order.job)
            return replace(answer, done=archives.clear(home, limit_s=DELETE_S), placed=placed)
        case ArchiveCommand.MAKE:
            if order.empties:
                archives.begin(home, archive=order.archive)
            return _make(order, answer, archives, home)
        case ArchiveCommand.EMPTY:
            try:
                archives.empty(home, job=order.job, archive=order.archive)
            except FileNotFoundError as error:
                raise ArchiveRefused("not_found") from error
            except HomeChanged as error:
                raise ArchiveRefused("changed", error.name[:300]) from error
            return replace(answer, done=True, placed=True)
        case ArchiveCommand.LEAVE:
            # Another order clears the home in place, so a repeated order gives the same answer.
            placed = archives.complete_install(home, job=order.job)
            return replace(answer, done=placed or archives.clear(home, limit_s=DELETE_S), placed=placed)
        case ArchiveCommand.RESTORE:
            return _restore(order, answer, archives, home)


def _make(order: HomeArchiveOrder, answer: HomeArchived, archives: HomeArchives, home: Home) -> HomeArchived:
    until, pauses = time.monotonic() + STEP_S, _pauses()
    while True:
        response = archives.make(home, job=order.job, archive=order.archive, most_bytes=order.most_bytes)
        progress = _result_of(response)
        if progress.get("state") == "done":
            return _with_amounts(replace(answer, done=True), progress)
        if time.monotonic() > until:
            return replace(
                answer, bytes_done=int(progress["bytes"]), checking=str(progress["phase"]) == "checking"
            )
        time.sleep(next(pauses))


def _restore(
    order: HomeArchiveOrder, answer: HomeArchived, archives: HomeArchives, home: Home
) -> HomeArchived:
    until, pauses = time.monotonic() + STEP_S, _pauses()
    if archives.complete_install(home, job=order.job):
        return replace(answer, done=True, placed=True)
    while True:
        progress = _result_of(archives.restore(home, job=order.job, archive=order.archive))
        if progress.get("state") == "done":
            archives.install(home, job=order.job)
            return _with_amounts(replace(answer, done=True, placed=True), progress)
        if time.monotonic() > until:
            return replace(answer, bytes_done=int(progress["bytes"]))
        time.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Yield the seconds between two queries of a job: few at first, since a small home takes a moment."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _with_amounts(answer: HomeArchived, progress: dict[str, Any]) -> HomeArchived:
    return replace(
        answer,
        bytes_done=int(progress["stream"]),
        size_bytes=int(progress["size"]),
        home_bytes=int(progress["home_bytes"]),
        entries=int(progress["entries"]),
        left_out=int(progress["left_out"]),
    )


def _result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the file server's result.

    Raises `ArchiveRefused`, and `ArchiveCutOff` if a retry can succeed.
    """
    result = response.get("ok")
    if isinstance(result, dict):
        return result
    refused = response.get("refused")
    refused = refused if isinstance(refused, dict) else {}
    code, about = str(refused.get("code")), str(refused.get("name", ""))[:300]
    if code in ("no_room", "disk_full"):
        raise ArchiveRefused("disk_full", free=int(refused.get("free", 0)))
    if code in REFUSALS:
        raise ArchiveRefused(code, about)
    raise ArchiveCutOff(
        "The archive was interrupted. The portal retries automatically.", detail=f"{code}: {about}"
    )
