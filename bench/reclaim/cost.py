"""CPU time of observing activity and of a reclaim pass, with many workspaces.

Seconds of CPU time of this process, the median of three, through the functions that the two periodic tasks
call. Before each observation every workspace has sent a heartbeat. The measurement is repeated with
`--changes` rows of history and `--periods` idle periods for each workspace. Nothing is sent: no worker and no
browser listens.

SQLite works inside this process, so the figures include it; they do not include PostgreSQL.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

BATCH = 2000


def run(arguments: argparse.Namespace) -> None:
    """Print the cost of observations and passes, without and with history."""
    from bench.admission.site import build

    build(arguments.workspaces + 400, arguments.workspaces, 0)
    print(f"{arguments.workspaces} workspaces: CPU seconds, and statements")
    measure(arguments)
    history(arguments.changes, arguments.periods)
    print(
        f"with {arguments.changes} changes and {arguments.periods} idle periods per workspace in the history"
    )
    measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    from django.utils import timezone

    from portal.reclaim import observing, passes
    from portal.reclaim.models import LastPass, ReclaimNotice, WorkspaceActivity
    from portal.workspaces.models import Workspace

    rounds = arguments.rounds
    Workspace.objects.update(ends_at=None, lifetime_s=72 * 3600)
    ReclaimNotice.objects.all().delete()
    heartbeat(busy=True)
    observing.run()
    with_progress = partial(heartbeat, busy=True, with_progress=True)
    print_cost(
        "observation, all active",
        [time_work(observing.run, partial(heartbeat, busy=True)) for _ in range(rounds)],
    )
    time_work(observing.run, with_progress)
    print_cost(
        "observation, all report progress", [time_work(observing.run, with_progress) for _ in range(rounds)]
    )
    print_cost(
        "observation, all idle",
        [time_work(observing.run, partial(heartbeat, busy=False)) for _ in range(rounds)],
    )
    mixed = [time_work(observing.run, partial(heartbeat, busy=number % 2 == 0)) for number in range(rounds)]
    print_cost("observation, all change between active and idle", mixed)
    WorkspaceActivity.objects.update(idle_s=0.0)
    LastPass.objects.all().delete()
    print_cost("pass, none near a limit", [time_work(passes.run) for _ in range(rounds)])
    WorkspaceActivity.objects.update(idle_s=6000.0, observed_at=timezone.now())

    def unwarned() -> None:
        ReclaimNotice.objects.all().delete()
        WorkspaceActivity.objects.update(observed_at=timezone.now())
        LastPass.objects.update(at=timezone.now())

    print_cost(
        "pass, most warnings allowed in one pass", [time_work(passes.run, unwarned) for _ in range(rounds)]
    )
    while passes.run().warned:
        pass
    assert ReclaimNotice.objects.count() == arguments.workspaces
    print_cost("pass, all already warned", [time_work(passes.run) for _ in range(rounds)])
    WorkspaceActivity.objects.update(idle_s=0.0, observed_at=timezone.now())
    print_cost("pass, all become active", [time_work(passes.run)])
    assert not ReclaimNotice.objects.exists()


def time_work(work: Callable[[], Any], before: Callable[[], Any] | None = None) -> tuple[float, int]:
    """Return the CPU seconds of `work` and the number of its SQL statements."""
    from django.db import connection

    if before is not None:
        before()
    statements = 0

    def count(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(sql, params, many, context)

    with connection.execute_wrapper(count):
        began = time.process_time()
        work()
        return time.process_time() - began, statements


def print_cost(name: str, figures: list[tuple[float, int]]) -> None:
    seconds = statistics.median(duration for duration, _statements in figures)
    print(f"  {name:48} {seconds:6.2f} s  {max(count for _seconds, count in figures):5}", flush=True)


_clock = 0


def heartbeat(*, busy: bool, with_progress: bool = False) -> None:
    """Store a report for every workspace, one minute after the previous one."""
    global _clock
    from django.utils import timezone

    from portal.workspaces.models import WorkspaceStatus

    _clock += 1
    at = timezone.now() + timedelta(seconds=60 * _clock)
    activity = {
        "kernels": {"count": 1, "busy": int(busy), "last_activity": "2026-11-23T10:00:00Z"},
        "terminals": {"count": 1, "last_activity": "2026-11-23T09:00:00Z"},
        "connections": 2,
        "cpu_seconds": 100.0 + 0.6 * _clock,
        "rss_mib": 700,
        "processes": 9,
        "jobs": 0,
        "gpus": [
            {
                "uuid": "GPU-1",
                "utilization_percent": 90 if busy else 0,
                "memory_used_mib": 900,
                "memory_total_mib": 81920,
            }
        ],
        "gpus_stale_s": None,
        **({"progress": {"tokens": 5000.0 + _clock % 3, "steps": 10.0}} if with_progress else {}),
    }
    idle_since = None if busy else timezone.now() - timedelta(hours=1)
    WorkspaceStatus.objects.update(activity=activity, heartbeat_at=at, gpu_idle_since=idle_since)


def history(changes: int, periods: int) -> None:
    from django.utils import timezone

    from portal.reclaim.models import ActivityChange, IdlePeriod
    from portal.workspaces.models import Workspace

    now = timezone.now()
    batch: list[Any] = []
    for pk, generation in Workspace.objects.values_list("pk", "generation"):
        own = {"workspace_id": pk, "generation": generation}
        batch += [
            ActivityChange(**own, at=now - timedelta(minutes=5 * n), active="cpu,gpu" if n % 2 else "")
            for n in range(changes)
        ]
        if len(batch) >= 20 * BATCH:
            ActivityChange.objects.bulk_create(batch, batch_size=BATCH)
            batch = []
    ActivityChange.objects.bulk_create(batch, batch_size=BATCH)
    batch = []
    for pk, generation in Workspace.objects.values_list("pk", "generation"):
        own = {"workspace_id": pk, "generation": generation}
        batch += [
            IdlePeriod(
                **own,
                kind="all",
                began_at=now - timedelta(hours=10 * n + 3),
                ended_at=now - timedelta(hours=10 * n),
            )
            for n in range(periods)
        ]
    IdlePeriod.objects.bulk_create(batch, batch_size=BATCH)
