"""Measure the size of the database and the work for samples of many devices over simulated days.

    DATABASE_URL=… python -m bench.samples [--devices N] [--days N] [--per-node N] [--keep-days N]

Minutes go through `apply_samples`, as from nodes with `--per-node` devices each. Hours are rolled up every
five simulated minutes, and old minutes are deleted every hour, as with beat. The values are synthetic: four
kinds of load, aggregated by the sampler's own code. Nothing else runs, and time is simulated.

Works on a new, empty database: an SQLite file, or a PostgreSQL database that it creates and drops. Exits with
1 if the rows take more than `BOUND_BYTES`, which docs/capacity.md states.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BOUND_BYTES = {
    "sqlite": {"minute": 130, "hour": 120},
    "postgresql": {"minute": 240, "hour": 240},
}
"""Maximum bytes of one minute and one hour of one device, with their index, on average."""
SPARE_BYTES = 2_000
"""Additional bytes per device: rows that are written again, and partly filled pages."""

START_S = 1_760_000_400 - 1_760_000_400 % 86_400
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SHAPES = 64
ROLL_EVERY, FORGET_EVERY = 5, 60
MB = 1_000_000
TABLES = {
    "minute": "inventory_deviceminute",
    "hour": "inventory_devicehour",
    "series": "inventory_deviceseries",
}


def loads(chance: random.Random) -> dict[str, Any]:
    """Return the GPU use in percent by second: `kind` → one minute."""
    burst = chance.randrange(5, 50)
    return {
        "training": lambda s: min(100, 94 + chance.randrange(7)) if s % 20 else chance.randrange(20, 60),
        "serving": lambda _: chance.randrange(10, 75),
        "notebook": lambda s: chance.randrange(60, 100) if burst <= s < burst + 6 else 0,
        "idle": lambda _: 0,
    }


def shapes(seed: int) -> list[list[dict[str, Any]]]:
    """Return messages about minutes of each kind of load, to be sent for any device and time."""
    from provisioning import messages
    from provisioning.gpu.ring import Ring
    from provisioning.gpu.rollup import minute
    from provisioning.gpu.samples import Sample

    chance = random.Random(seed)
    messages_by_kind = []
    for kind in loads(chance):
        of_kind = []
        for _ in range(SHAPES):
            level = loads(chance)[kind]
            ring = Ring(MINUTE_S)
            memory = chance.randrange(2_000, 80_000)
            for second in range(MINUTE_S):
                use = level(second)
                ring.append(
                    Sample(
                        second,
                        gpu_util_pct=use,
                        memory_util_pct=use // 2,
                        memory_used_mib=memory + use,
                        power_mw=90_000 + use * 5_900 + chance.randrange(9_000),
                        temperature_c=35 + use // 3,
                        memory_temperature_c=40 + use // 3,
                        sm_clock_mhz=1_980 - chance.randrange(4) * 15 if use else 345,
                        memory_clock_mhz=3_201,
                        pcie_tx_kib_s=use * chance.randrange(30_000),
                        pcie_rx_kib_s=use * chance.randrange(30_000),
                        nvlink_tx_kib_s=use * 1_000,
                        nvlink_rx_kib_s=use * 1_000,
                        throttle=0x04 if use > 97 and chance.random() < 0.3 else 0x01 * (use == 0),
                    )
                )
            window = ring.between(0, MINUTE_S)
            of_kind.append(messages.dump(minute(window, uuid="", start_s=0)))
        messages_by_kind.append(of_kind)
    return messages_by_kind


def build(devices: int, per_node: int) -> list[tuple[str, list[str]]]:
    """Create nodes and return the UUIDs of their devices."""
    from portal.fleet.inventory.models import Device, Node, Pool

    pool = Pool.objects.create(slug="bench", name="Bench", driver="local", config={"node": "none"})
    nodes = Node.objects.bulk_create(
        Node(pool=pool, name=f"node-{number:04d}", online=True) for number in range(-(-devices // per_node))
    )
    rows = Device.objects.bulk_create(
        Device(
            node=nodes[number // per_node],
            uuid=f"GPU-{number:08d}-0000-4000-8000-{number:012d}",
            index=number % per_node,
            model="NVIDIA H200",
            memory_mib=143_771,
        )
        for number in range(devices)
    )
    return [
        (node.name, [row.uuid for row in rows[place * per_node : (place + 1) * per_node]])
        for place, node in enumerate(nodes)
    ]


def sizes() -> dict[str, int]:
    """Return the bytes of each table, with its indexes and free pages, and of the whole database."""
    from django.db import connection

    bytes_of = {}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
        else:
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        bytes_of["database"] = int(cursor.fetchone()[0])
        for key, table in TABLES.items():
            if connection.vendor == "postgresql":
                cursor.execute("SELECT pg_total_relation_size(%s)", [table])
            else:
                cursor.execute(
                    "SELECT COALESCE(SUM(pgsize), 0) FROM dbstat WHERE aggregate = 1 AND name IN"
                    " (SELECT name FROM sqlite_master WHERE tbl_name = %s)",
                    [table],
                )
            bytes_of[key] = int(cursor.fetchone()[0])
    return bytes_of


def vacuum() -> None:
    """Vacuum as PostgreSQL does once a fifth of a table is dead. Simulated time outruns autovacuum."""
    from django.db import connection

    if not connection.in_atomic_block:
        with connection.cursor() as cursor:
            for table in TABLES.values():
                cursor.execute(f"VACUUM {table}")


def minute_messages(
    nodes: list[tuple[str, list[str]]],
    kinds: list[list[dict[str, Any]]],
    start_s: int,
    chance: random.Random,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Return the messages of all nodes about one minute. A device keeps its load for a random few hours."""
    for place, (node, uuids) in enumerate(nodes):
        rollups = []
        for index, uuid in enumerate(uuids):
            kind = kinds[(place * 7 + index * 3 + start_s // (5 * HOUR_S)) % len(kinds)]
            rollups.append({**kind[chance.randrange(SHAPES)], "uuid": uuid, "start_s": start_s})
        yield node, rollups


def run(devices: int, days: float, per_node: int, *, seed: int = 1, say: Any = None) -> dict[str, Any]:
    """Fill the database day by day. Returns bytes, rows and seconds of work."""
    from django.db import connection

    from portal.fleet.inventory import samples
    from portal.fleet.inventory.models import DeviceHour, DeviceMinute

    chance = random.Random(seed)
    nodes, templates = build(devices, per_node), shapes(seed)
    spent = {"apply": 0.0, "roll_up": 0.0, "forget": 0.0}
    longest = {"apply": 0.0, "roll_up": 0.0, "forget": 0.0}
    by_day = []
    forgotten: list[int] = []

    def timed(step: str, work: Any) -> None:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        spent[step] += took
        longest[step] = max(longest[step], took)

    minutes = round(days * DAY_S / MINUTE_S)
    for number in range(minutes):
        start_s = START_S + number * MINUTE_S
        now_s = start_s + MINUTE_S + 1
        batch = list(minute_messages(nodes, templates, start_s, chance))

        def apply(batch: Any = batch, now_s: float = now_s) -> None:
            for node, rollups in batch:
                result = samples.apply_samples(
                    pool_slug="bench", node_name=node, rollups=rollups, now_s=now_s
                )
                if result.written != len(rollups):
                    raise RuntimeError(f"not all was written: {result}")

        timed("apply", apply)
        if (number + 1) % ROLL_EVERY == 0:
            timed("roll_up", samples.roll_up_hours)
        if (number + 1) % FORGET_EVERY == 0:
            timed("forget", lambda now_s=now_s: forgotten.append(samples.forget_old(now_s=now_s)))
            if connection.vendor == "postgresql" and sum(forgotten) > DeviceMinute.objects.count() // 5:
                vacuum()
                forgotten.clear()
        if (number + 1) % (DAY_S // MINUTE_S) == 0 or number + 1 == minutes:
            samples.roll_up_hours()
            rows = {"minute": DeviceMinute.objects.count(), "hour": DeviceHour.objects.count()}
            by_day.append({"day": round((number + 1) * MINUTE_S / DAY_S, 2), "bytes": sizes(), "rows": rows})
            if say:
                say(by_day[-1])
    last = by_day[-1]
    bytes_per_row = {
        key: round(last["bytes"][key] / max(1, last["rows"][key]), 1) for key in ("minute", "hour")
    }
    return {
        "database": connection.vendor,
        "devices": devices,
        "days": days,
        "devices_per_node": per_node,
        "by_day": by_day,
        "bytes_each": bytes_per_row,
        "mb_per_device_day": {
            "minutes": round(bytes_per_row["minute"] * DAY_S / MINUTE_S / MB, 4),
            "hours": round(bytes_per_row["hour"] * DAY_S / HOUR_S / MB, 5),
        },
        "work_s_per_simulated_minute": {step: round(seconds / minutes, 4) for step, seconds in spent.items()},
        "longest_s": {step: round(seconds, 3) for step, seconds in longest.items()},
    }


def site_mb(vendor: str, devices: int, keep_minutes_days: int, keep_hours_days: int) -> float:
    """Return the maximum size for so many devices in MB. Retention works by whole hours."""
    bound = BOUND_BYTES[vendor]
    minutes = keep_minutes_days * 1440 + 120
    rows = minutes * bound["minute"] + (keep_hours_days + 1) * 24 * bound["hour"]
    return devices * (rows + 2 * SPARE_BYTES) / MB


def exceeded_limits(result: dict[str, Any]) -> list[str]:
    """Return sentences about exceeded limits."""
    last = result["by_day"][-1]
    spare = SPARE_BYTES * result["devices"]
    return [
        f"{last['rows'][key]} {key}s take {last['bytes'][key]} bytes: more than {most} each, "
        "the bound in docs/capacity.md."
        for key, most in BOUND_BYTES[result["database"]].items()
        if last["bytes"][key] > last["rows"][key] * most + spare
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--days", type=float, default=1)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--keep-days", type=int, help="of minutes; the setting's own without")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="berth-bench-") as scratch:
        os.environ.setdefault("DATABASE_URL", f"sqlite:///{scratch}/bench.sqlite3")
        os.environ.setdefault("BERTH_LOG_LEVEL", "ERROR")
        os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings"
        if args.keep_days:
            os.environ["BERTH_KEEP_MINUTES_DAYS"] = str(args.keep_days)
        import django

        django.setup()
        from django.db import connection
        from django.test.utils import setup_test_environment

        setup_test_environment()
        name = connection.settings_dict["NAME"]
        if connection.vendor == "sqlite":
            connection.settings_dict["TEST"]["NAME"] = f"{scratch}/test.sqlite3"
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        try:
            result = run(
                args.devices,
                args.days,
                args.per_node,
                say=lambda day: print(json.dumps(day), file=sys.stderr, flush=True),
            )
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    problems = exceeded_limits(result)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
