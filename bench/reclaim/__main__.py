"""Measure reclaim with the portal's own functions and default settings.

    python -m bench.reclaim verdicts [--hours 24]
    python -m bench.reclaim cost [--workspaces 10000]

Uses an empty SQLite file, or DATABASE_URL.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

SETTINGS = (
    *("BERTH_IDLE_GPU_MINUTES", "BERTH_IDLE_MINUTES", "BERTH_RECLAIM_NOTICE_MINUTES"),
    *("BERTH_LIFETIME_HOURS", "BERTH_MAX_LIFETIME_HOURS"),
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    verdicts = kinds.add_parser("verdicts", help="what recorded sessions get, and GPU-hours given back")
    verdicts.add_argument("--hours", type=float, default=24, help="how long each session is left open")
    verdicts.add_argument("--only", default="", help="names that begin so, separated by commas")
    cost = kinds.add_parser("cost", help="CPU time of observations and passes")
    cost.add_argument("--workspaces", type=int, default=10_000)
    cost.add_argument("--changes", type=int, default=500)
    cost.add_argument("--periods", type=int, default=60)
    cost.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    for name in SETTINGS:
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/bench.sqlite3")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        from bench.admission.__main__ import disable_messages

        disable_messages()
        if arguments.kind == "cost":
            from bench.reclaim import cost

            cost.run(arguments)
            return
        from bench.reclaim import verdicts
        from tests.reclaim.histories import recorded

        prefixes = tuple(arguments.only.split(","))
        histories = [history for history in recorded() if history.name.startswith(prefixes)]
        results = verdicts.run(histories, hours=arguments.hours)
        print(verdicts.table(results, hours=arguments.hours))
        sys.exit(1 if verdicts.false_stops(results) else 0)


if __name__ == "__main__":
    main()
