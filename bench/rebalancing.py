"""Time a rebalancing pass: `python -m bench.rebalancing [--workspaces 10000] [--waiting 100] [--hot 1]`.

Reports seconds of CPU time of this process, as the median of three, through the functions that the periodic
task calls, on an empty SQLite file or on DATABASE_URL. Nodes, devices and samples are rows only, and nothing
is sent.

One GPU in 25 is free, scattered over the nodes. `--hot` percent of the workspaces are on a GPU throttled by
heat, and as many report slower progress than elsewhere; the others report that it is not slower. `--waiting`
requests for four GPUs each have waited for some time. The first pass also reads the queue's snapshot, like
the first preview of a process, and simulates its proposals; later passes find them open.

SQLite works inside this process, so its time is in the figures; PostgreSQL's is not.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from datetime import timedelta
from typing import Any

BATCH = 2000
MINUTES = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workspaces", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=100)
    parser.add_argument("--hot", type=int, default=1)
    parser.add_argument("--history", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/bench.sqlite3")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        from bench.admission.__main__ import disable_messages

        disable_messages()
        site(arguments.workspaces, arguments.waiting, arguments.hot)
        progress(arguments.hot)
        print(f"{arguments.workspaces} workspaces: CPU seconds, and statements")
        measure(arguments.rounds, "nothing waits and nothing is hot", calm=True)
        measure(arguments.rounds, f"{arguments.hot} % are hot, {arguments.waiting} wait", calm=False)
        history(arguments.history)
        measure(arguments.rounds, f"with {arguments.history} old moves and proposals", calm=False)
        measure_chosen_moves(arguments.rounds)


def measure(rounds: int, name: str, *, calm: bool) -> None:
    from bench.reclaim.cost import time_work
    from portal.fleet.inventory.models import DeviceMinute
    from portal.reclaim.models import RebalanceProposal
    from portal.reclaim.rebalancing import proposing
    from portal.workspaces.models import QueueEntry

    rule = "team" if calm else "placement"
    QueueEntry.objects.filter(workspace__state="pending").update(blocker={"rule": rule})
    DeviceMinute.objects.filter(sm_clock_mhz__lt=1500).update(thermal_s=0 if calm else 60)
    first = time_work(proposing.run)
    figures = [time_work(proposing.run) for _ in range(rounds)]
    seconds = statistics.median(duration for duration, _statements in figures)
    open_count = RebalanceProposal.objects.filter(state="open").count()
    print(
        f"  {name:45} first {first[0]:5.2f} s {first[1]:4}, then {seconds:5.2f} s "
        f"{max(count for _seconds, count in figures):4}; {open_count} open",
        flush=True,
    )


def measure_chosen_moves(rounds: int) -> None:
    """Time previews of moves chosen by an operator: of one workspace, and of the most in one request."""
    from bench.reclaim.cost import time_work
    from portal.people.accounts.models import User
    from portal.scheduling import operator_moves
    from portal.scheduling.moves import PlannedMove
    from portal.workspaces.bulk import MAX_AT_ONCE, visible
    from portal.workspaces.models import Workspace

    operator = User.objects.create(username="bench-operator", is_operator=True)
    keys = list(Workspace.objects.filter(state="running").values_list("pk", flat=True)[:MAX_AT_ONCE])
    for count in (1, MAX_AT_ONCE):
        rows = list(visible(operator, keys[:count]).values())
        plan = operator_moves.preview(actor=operator, workspaces=rows)
        moved = sum(isinstance(verdict, PlannedMove) for verdict in plan.verdicts.values())
        figures = [
            time_work(lambda rows=rows: operator_moves.preview(actor=operator, workspaces=rows))
            for _ in range(rounds)
        ]
        seconds = statistics.median(duration for duration, _statements in figures)
        print(f"  preview of {count:3} chosen moves {seconds:5.2f} s; {moved} possible", flush=True)


def site(workspaces: int, waiting: int, hot: int) -> None:
    from django.utils import timezone

    from bench.admission.site import build
    from portal.fleet.inventory.models import (
        AllocatedDevice,
        Allocation,
        Device,
        DeviceMinute,
        DeviceSeries,
        Pool,
    )
    from portal.workspaces.models import Workspace

    chance = random.Random(1)
    stopped = workspaces // 24
    devices = -(-(workspaces + stopped) // 24) * 24
    # Place the workspaces to be stopped first, so that free GPUs are scattered.
    build(devices, workspaces + stopped + waiting, waiting)
    Pool.objects.update(config={"node": "none", "homes_shared": True, "homes": "/homes"})
    running = list(Workspace.objects.filter(state="running").values_list("pk", flat=True))
    stopping = set(chance.sample(running, len(running) - workspaces))
    for first in range(0, len(stopping), 500):
        batch = list(stopping)[first : first + 500]
        AllocatedDevice.objects.filter(allocation__workspace__in=batch).delete()
        Allocation.objects.filter(workspace__in=batch).delete()
        Workspace.objects.filter(pk__in=batch).update(state="stopped", desired_state="stopped", pool=None)
    Workspace.objects.filter(state="running").update(loses_work=False)
    old = timezone.now() - timedelta(hours=3)
    Workspace.objects.filter(state="pending").update(requested_at=old)
    now_s = int(timezone.now().timestamp()) // 60 * 60
    hot_by_device = {
        device: chance.randrange(100) < hot
        for device in AllocatedDevice.objects.values_list("device_id", flat=True)
    }
    series = DeviceSeries.objects.bulk_create(
        [
            DeviceSeries(device_id=pk, newest_s=now_s + 600)
            for pk in Device.objects.values_list("pk", flat=True)
        ],
        batch_size=BATCH,
    )
    minutes = []
    for row in series:
        is_hot, is_held = hot_by_device.get(row.device_id, False), row.device_id in hot_by_device
        minutes += [
            DeviceMinute(
                series=row,
                # In the future, so that they stay current while the benchmark runs.
                start_s=now_s - 60 * number + 600,
                measured_s=60,
                gpu_s=60,
                gpu_pct_s=60 * 90 if is_held else 0,
                gpu_used_s=60 if is_held else 0,
                sm_clock_mhz=1000 if is_hot else 1900,
                throttle_s=60,
                thermal_s=0,
                slowed_s=0,
                power_s=0,
            )
            for number in range(MINUTES)
        ]
    DeviceMinute.objects.bulk_create(minutes, batch_size=BATCH)


def progress(slow: int) -> None:
    """Report the headroom of all nodes and the progress of all workspaces."""
    from django.utils import timezone

    from portal.fleet.inventory.models import Node
    from portal.reclaim.models import WorkPace
    from portal.reclaim.pacing import ReportedRates, record_rates
    from portal.workspaces.models import Workspace

    chance = random.Random(2)
    now = timezone.now()
    headroom = {
        "watched_s": 300, "cores": 192, "runnable": 150, "cpu_idle": 20.0, "cpu_waited": 90.0,
        "memory_left": 40.0, "memory_stalled": 0.0,
    }  # fmt: skip
    Node.objects.update(facts={"headroom": headroom}, online=True, seen_at=now)
    running = list(Workspace.objects.filter(state="running").values_list("pk", "generation"))
    at_s = now.timestamp() - 720
    record_rates([ReportedRates(pk, generation, at_s, {"tokens": 100.0}) for pk, generation in running])
    hot = [pk for pk, _generation in running if chance.randrange(100) < slow]
    moved = '"node":"node-before"'
    for row in WorkPace.objects.filter(pk__in=hot):
        best = '"elsewhere":{"node":"node-before","devices":[],"rate":200.0,"at_s":%s}' % at_s  # noqa: UP031
        row.paces = row.paces.replace('"elsewhere":null', best)
        assert moved in row.paces
        row.save()
    generations = dict(running)
    for minute in range(12):
        at = at_s + 60 * (minute + 1)
        record_rates([ReportedRates(pk, generations[pk], at, {"tokens": 100.0}) for pk in hot])
    assert WorkPace.objects.exclude(slow_since=None).count() == len(hot)


def history(count: int) -> None:
    from django.utils import timezone

    from portal.fleet.inventory.models import Pool
    from portal.reclaim.models import RebalanceProposal
    from portal.scheduling.models import Move
    from portal.workspaces.models import Workspace

    pool = Pool.objects.get()
    place: Any = {"nodes": [{"node": "node-00000", "devices": [], "repartitions": []}]}
    keys = list(Workspace.objects.filter(state="running").values_list("pk", flat=True))
    at = timezone.now() - timedelta(days=20)
    Move.objects.bulk_create(
        [
            Move(
                workspace_id=keys[number % len(keys)], generation=1, pool=pool, source=place, target=place,
                asked_at=at, ended_at=at, outcome="arrived",
            )
            for number in range(count)
        ],
        batch_size=BATCH,
    )  # fmt: skip
    RebalanceProposal.objects.bulk_create(
        [
            RebalanceProposal(
                key=f"old-{number}", moves=[], reason={}, gain=1, state="withdrawn", proposed_at=at,
                seen_at=at, decided_at=at,
            )
            for number in range(count)
        ],
        batch_size=BATCH,
    )  # fmt: skip


if __name__ == "__main__":
    main()
