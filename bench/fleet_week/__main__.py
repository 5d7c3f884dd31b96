"""Simulate a week of a GPU fleet with faults, and report what the portal's default policy finds.

    python -m bench.fleet_week [--devices 2000] [--days 7] [--seed 1] [--rate 1] [--json OUT]

Devices, nodes, users and the clock are simulated; everything else is the portal. Messages of nodes go to the
functions that receive them, on an empty SQLite file or on DATABASE_URL, with the default settings of a pool.
Reports of checks are judged by the check's own rules. `faults` has the rates with their sources, and marks
assumptions. At the published rates a week has only a few faults; `--rate 25` gives the faults of half a
year. The control plane looks for due checks every `--tick` seconds instead of every 30 s. Interim figures are
printed after each day.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_week", description=__doc__)
    parser.add_argument("--devices", type=int, default=2000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="times the published rates")
    parser.add_argument("--tick", type=float, default=1200.0)
    parser.add_argument("--check-every", type=int, help="hours, other than a pool's default")
    parser.add_argument("--json", type=Path)
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
        from bench.fleet_week import report
        from bench.fleet_week.run import Fleet, Week

        def tell(week: Week) -> None:
            summary = report.summary(week)
            print(report.table(summary))
            print(f"{time.process_time() - began:.0f} s of CPU\n", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(summary, indent=1), encoding="utf-8")

        policy = {"check_every_hours": arguments.check_every} if arguments.check_every else {}
        began = time.process_time()
        Fleet(
            arguments.devices,
            arguments.days,
            arguments.seed,
            rate=arguments.rate,
            tick_s=arguments.tick,
            on_day=tell,
            **policy,
        ).run()


if __name__ == "__main__":
    main()
