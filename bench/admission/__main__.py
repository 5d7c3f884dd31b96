"""Measure previews on a full site, and admissions in sequence, beside the same decisions in memory.

    DATABASE_URL=… python -m bench.admission [--devices N] [--workspaces N] [--waiting N] [--json OUT]
    DATABASE_URL=… python -m bench.admission --workspaces 30000 --waiting 20000 --queue 20
    DATABASE_URL=… python -m bench.admission --data DIR [--bursts 100,1000] [--homes shared]

The second form measures the CPU time of a cycle, a creation and a preview while many requests wait. The third
sends the openb request stream in DIR (laid out as for `bench.placement`) through the database until the
cluster is full, beside the placement engine alone on the same stream.

Works on a new, empty database: an SQLite file, or a PostgreSQL database that it creates and drops. Nodes and
devices are rows only, and no worker runs.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def summary(times_ms: list[float]) -> dict[str, float]:
    return {
        "n": len(times_ms),
        "p50_ms": round(statistics.median(times_ms), 1),
        "p95_ms": round(percentile(times_ms, 0.95), 1),
        "max_ms": round(max(times_ms), 1),
    }


def previews(count: int) -> dict[str, Any]:
    """Return the times of previews of one flavor: after no change, and after different changes."""
    from portal.catalog.models import Flavor, Template
    from portal.common.domain_events import emit
    from portal.people.accounts.models import Team
    from portal.quota.limits.domain_events import LimitsChanged
    from portal.scheduling import admission
    from portal.workspaces.domain_events import RequestChanged
    from portal.workspaces.lifecycle import State
    from portal.workspaces.models import Workspace

    template = Template.objects.get(slug="bench")
    flavors = list(Flavor.objects.select_related("pool"))
    teams = list(Team.objects.prefetch_related("members"))

    def preview(number: int) -> None:
        team = teams[number % len(teams)]
        flavor = flavors[number % len(flavors)]
        admission.assess(template=template, flavor=flavor, team=team, actor=team.members.all()[0])

    preview(0)

    def after(change: Callable[[int], None]) -> dict[str, float]:
        times = []
        for number in range(count):
            change(number)
            times.append(timed(lambda n=number: preview(n)))
        return summary(times)

    running = list(Workspace.objects.filter(state=State.RUNNING).select_related("team", "owner")[:count])

    def workspace(number: int) -> None:
        emit(RequestChanged(running[number % len(running)]))

    def limit(_: int) -> None:
        emit(LimitsChanged())

    return {
        "nothing changed": after(lambda _: None),
        "a workspace changed each time": after(workspace),
        "a limit changed each time": after(limit),
    }


class NoOpRedis:
    """Replaces Redis: accepts every call and does nothing, as if no worker and no browser listened."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def disable_messages() -> None:
    """Disable messages to workers and browsers, so that Redis is not part of the measurement."""
    from portal.celery import app
    from portal.common.events import live

    app.send_task = lambda *_, **__: None
    live.connection = NoOpRedis


def admissions(count: int, batch: int) -> dict[str, Any]:
    """Create requests and start them through the database, with a cycle after each `batch` of them."""
    from django.utils import timezone

    from bench.admission import site
    from portal.catalog.models import Flavor, Template
    from portal.people.accounts.models import Team
    from portal.scheduling import cycle
    from portal.workspaces.models import Workspace

    disable_messages()
    template = Template.objects.get(slug="bench")
    flavor = Flavor.objects.get(slug="t4-x1")
    team = Team.objects.order_by("slug").first()
    started, spent = 0, 0.0
    while started < count:
        now = timezone.now()
        site.submit(
            Workspace(
                name=f"a{now.timestamp()}-{n}", owner=owner, team=team, template=template, flavor=flavor,
                resources=flavor.as_request(), state_since=now, requested_at=now,
            )
            for n, owner in enumerate(site.newcomers(team, batch))
        )  # fmt: skip
        began = time.perf_counter()
        report = cycle.run()
        spent += time.perf_counter() - began
        if not report.started:
            break
        started += len(report.started)
    return {"batch": batch, "started": started, "per_s": round(started / spent, 1)}


def full_site(args: argparse.Namespace) -> dict[str, Any]:
    from django.db import connection

    from bench.admission import site
    from portal.scheduling import cycle

    spare = max(args.admissions, 8 * args.queue)
    site.build(args.devices, args.workspaces, args.waiting, spare=spare, homes=args.homes)
    result: dict[str, Any] = {
        "database": connection.vendor,
        "devices": args.devices + spare,
        "workspaces": args.workspaces,
        "waiting": args.waiting,
    }
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(previews, 3)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
    disable_messages()
    # A settled site: everything that can start has started.
    began = time.perf_counter()
    cycle.run()
    result["first cycle_s"] = round(time.perf_counter() - began, 1)
    if args.queue:
        from bench.admission import queue

        result["queue"] = queue.measure(args.queue)
        return result
    result["previews"] = previews(args.previews)
    result["new form, 12 flavors at once"] = form(max(5, args.previews // 4))
    if args.admissions:
        result["admissions"] = admissions(args.admissions, args.batch)
    return result


def form(count: int) -> dict[str, Any]:
    """Return the times of the new-workspace form's calls: all flavors at once, after a workspace changed."""
    from portal.catalog.models import Flavor, Template
    from portal.common.domain_events import emit
    from portal.people.accounts.models import Team
    from portal.scheduling import admission
    from portal.workspaces.domain_events import RequestChanged
    from portal.workspaces.lifecycle import State
    from portal.workspaces.models import Workspace

    template = Template.objects.get(slug="bench")
    flavors = list(Flavor.objects.select_related("pool"))
    teams = list(Team.objects.prefetch_related("members"))
    running = list(Workspace.objects.filter(state=State.RUNNING).select_related("team", "owner")[:count])
    times = []
    for number, changed in enumerate(running):
        emit(RequestChanged(changed))
        team = teams[number % len(teams)]
        times.append(
            timed(
                lambda team=team: admission.assess_many(
                    template=template, flavors=flavors, team=team, actor=team.members.all()[0]
                )
            )
        )
    return summary(times)


def replay(args: argparse.Namespace) -> dict[str, Any]:
    from bench.admission import stream

    nodes, past, requests = stream.read(args.data, args.workload, args.copies, args.requests)
    disable_messages()
    stream.build(nodes, homes=args.homes)
    runs = []
    for burst in map(int, args.bursts.split(",")):
        if args.profile:
            profile = cProfile.Profile()
            runs.append(profile.runcall(stream.through_database, requests, burst))
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        else:
            runs.append(stream.through_database(requests, burst))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        stream.empty()
    largest = max(run["requests"] for run in runs)
    result = {
        "workload": args.workload,
        "homes": args.homes,
        "nodes": len(nodes),
        "gpus": sum(len(node.devices) for node in nodes),
        "requests_in_memory": largest,
        "memory": stream.in_memory(nodes, past, requests[:largest]),
        "runs": runs,
    }
    print(stream.table(result), file=sys.stderr)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--workspaces", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=200)
    parser.add_argument("--previews", type=int, default=40)
    parser.add_argument(
        "--queue", type=int, default=0, metavar="N", help="what a long queue costs, N times each"
    )
    parser.add_argument("--admissions", type=int, default=400)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument(
        "--profile",
        action="store_true",
        help="show where the time of a preview goes, or with --data of a cycle",
    )
    parser.add_argument(
        "--homes",
        default="apart",
        choices=("apart", "shared"),
        help="on each node (default) or in one folder",
    )
    parser.add_argument("--data", type=Path, help="folder with openb/: send its requests through instead")
    parser.add_argument("--workload", default="default")
    parser.add_argument("--requests", type=int, default=100_000, help="with --data: at most so many")
    parser.add_argument("--copies", type=int, default=2, help="with --data: how many times the cluster")
    parser.add_argument("--bursts", default="100,1000", help="with --data: how many arrive at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    scratch = tempfile.TemporaryDirectory(prefix="berth-bench-")
    os.environ.setdefault("DATABASE_URL", f"sqlite:///{scratch.name}/bench.sqlite3")
    os.environ.setdefault("BERTH_LOG_LEVEL", "ERROR")
    os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
    import django

    django.setup()
    from django.db import connection
    from django.test.utils import setup_test_environment

    setup_test_environment()
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        connection.settings_dict["TEST"]["NAME"] = f"{scratch.name}/test.sqlite3"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        result = replay(args) if args.data else full_site(args)
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)
        scratch.cleanup()
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
