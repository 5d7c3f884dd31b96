"""Measure the report of GPU use: `python -m bench.gpu_use [--devices 2000] [--days 365]`.

Reports milliseconds of CPU time of this process, as the median of five, for a year's report through the
functions behind the page, REST and CSV, for each breakdown of the site and of one team; and the seconds to
sum up months and one day. Uses an empty SQLite file, or DATABASE_URL. The rows are those of a site with
50 teams, 500 users who hold a GPU on each day, 20 flavors, 8 devices per node, each team on a tenth of the
nodes.

SQLite works inside this process, so its time is in the figures; PostgreSQL's is not.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

TEAMS, USERS, FLAVORS, MODELS, PER_NODE = 50, 500, 20, 5, 8
HOUR = 3_600_000


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=2000)
    parser.add_argument("--days", type=int, default=365)
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
        from portal.people.accounts.models import Team, User
        from portal.reports import days, gpu_use, month_sums
        from portal.reports.models import GpuDay

        olga = User.objects.create(username="olga", is_operator=True)
        Team.objects.create(slug="team-0", name="Team 0")
        today = datetime.now(UTC).date()
        batch: list[Any] = []
        for back in range(arguments.days):
            batch += rows_of(today - timedelta(days=back), arguments.devices)
            if len(batch) > 20_000:
                GpuDay.objects.bulk_create(batch, batch_size=2000)
                batch = []
        GpuDay.objects.bulk_create(batch, batch_size=2000)
        print(f"{arguments.devices} devices, {arguments.days} days, {GpuDay.objects.count()} rows")
        begun, count = time.process_time(), 0
        while summed := month_sums.run(datetime.now(UTC).replace(hour=12)):
            count += len(summed)
        print(f"adding up {count} months: {time.process_time() - begun:.1f} s")
        since = today - timedelta(days=arguments.days - 1)
        for team in ("", "team-0"):
            for by in gpu_use.BY:
                if team and by == "team":
                    continue

                def ask(team: str = team, by: str = by) -> None:
                    gpu_use.report(actor=olga, since=since, until=today, team=team, by=by)

                print(f"{team or 'site':8} by {by:7} {1000 * median(ask):7.0f} ms")
        samples(arguments.devices, today)
        begun = time.process_time()
        days.write(today - timedelta(days=1))
        print(f"adding up a day: {time.process_time() - begun:.1f} s")


def rows_of(day: date, devices: int) -> Iterator[Any]:
    """Return the report rows of one day, for a site with this number of devices."""
    from portal.reports.models import GpuDay

    chance = random.Random(day.toordinal())

    def row(team: str, dimension: str, key: str, gpus: float, *, whole: bool = False) -> Any:
        held_s = round(gpus * 24 * HOUR)
        measured, used = round(held_s * 0.98), round(held_s * chance.uniform(0.1, 0.6))
        figures = {"capacity": held_s, "measured": measured, "used": used} if whole else {}
        return GpuDay(
            day=day, team=team, dimension=dimension, key=key, held=held_s, held_measured=measured,
            held_used=used, waited=held_s // 10, reclaimed=held_s // 20, **figures,
        )  # fmt: skip

    nodes = devices // PER_NODE
    yield row("", "all", "", devices, whole=True)
    for number in range(MODELS):
        yield row("", "model", f"NVIDIA model {number}", devices / MODELS, whole=True)
    for number in range(nodes):
        yield row("", "node", f"pool-{number % 4}/node-{number}", PER_NODE, whole=True)
    for number in range(FLAVORS):
        yield row("", "flavor", f"flavor-{number}", devices / FLAVORS)
    for number in range(USERS):
        yield row("", "user", f"user-{number}", devices / USERS)
    for team in range(TEAMS):
        name, own = f"team-{team}", devices / TEAMS
        yield row("", "team", name, own)
        yield row(name, "all", "", own)
        for number in range(USERS // TEAMS):
            yield row(name, "user", f"user-{team * (USERS // TEAMS) + number}", own)
        for number in range(MODELS):
            yield row(name, "model", f"NVIDIA model {number}", own / MODELS)
        for number in range(FLAVORS // 2):
            yield row(name, "flavor", f"flavor-{number}", own / FLAVORS)
        for number in range(nodes // 10):
            yield row(name, "node", f"pool-{number % 4}/node-{(team * 7 + number) % nodes}", own)


def samples(devices: int, today: date) -> None:
    """Create yesterday's hourly samples of all devices."""
    from portal.fleet.inventory.models import Device, DeviceHour, DeviceSeries, Node, Pool

    pool = Pool.objects.create(slug="bench", name="Bench", driver="local")
    nodes = Node.objects.bulk_create(
        Node(pool=pool, name=f"node-{number}") for number in range(devices // PER_NODE)
    )
    rows = Device.objects.bulk_create(
        Device(node=nodes[number // PER_NODE % len(nodes)], uuid=f"GPU-{number}", index=number % PER_NODE,
               model=f"NVIDIA model {number % MODELS}")
        for number in range(devices)
    )  # fmt: skip
    series = DeviceSeries.objects.bulk_create(DeviceSeries(device=device) for device in rows)
    begin_s = int(datetime(today.year, today.month, today.day, tzinfo=UTC).timestamp()) - 86_400
    DeviceHour.objects.bulk_create(
        (
            DeviceHour(series=row, start_s=begin_s + 3600 * hour, measured_s=3600, gpu_s=3600,
                       gpu_pct_s=3600 * (hour * 4), gpu_used_s=3600)
            for row in series
            for hour in range(24)
        ),
        batch_size=2000,
    )  # fmt: skip


def median(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(5):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
