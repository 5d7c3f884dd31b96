"""Time from the release of a GPU to its next user: `python -m bench.gpu_release [--runs 12]`.

An instance with default settings on SQLite has one simulated GPU. Its library is a test double, so it is
neither checked nor scrubbed between two users, which takes extra time on a real GPU. Two users have a real
JupyterLab each: one holds the GPU, the other waits for it. The holder releases it by REST, as *Release GPU*
does. The other user gets it, and the first one waits to have it attached again.

Times are wall-clock seconds; those between release and grant come from the portal's own rows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests import instance
from tests.e2e import simulated_gpu

LIMIT_S = 180
PREPARE = """
import django
django.setup()
from portal.catalog.models import Flavor
from portal.fleet.inventory.models import Pool
Flavor.objects.create(slug="one-gpu", name="One GPU", cpu_milli=500, memory_mib=2048, accelerator_count=1)
Pool.objects.update(check_required=False, scrub_required=False)
"""
HELD = """
SELECT a.granted_at, a.released_at FROM inventory_allocation a
JOIN inventory_allocateddevice d ON d.allocation_id = a.id
WHERE a.workspace_id = ? ORDER BY a.granted_at DESC
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=12, help="counted releases, after one that warms up")
    return parser.parse_args()


@contextmanager
def berth() -> Iterator[instance.Berth]:
    environment = instance.notebook_environment()
    if environment is None:
        raise SystemExit("There is no JupyterLab here: run `make notebook` first.")
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as temporary, simulated_gpu.reports() as server:
        folder = Path(temporary)
        variables = {
            "LD_LIBRARY_PATH": str(simulated_gpu.library(folder / "driver")),
            "BERTH_AGENT_URL": f"http://127.0.0.1:{server.server_address[1]}",
        }
        with instance.running(folder, environment=environment, **variables) as started:
            simulated_gpu.serve_for(server, started.instance.web_port)
            started.run("-c", PREPARE, DJANGO_SETTINGS_MODULE="portal.settings")
            yield started


def allocation_times(site: instance.Berth, workspace: str) -> tuple[datetime, datetime | None]:
    """Return when the workspace last got the GPU, and when it released it."""
    allocated, released = site.rows(HELD, workspace.replace("-", ""))[0]
    return _utc(allocated), _utc(released) if released else None


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def measure(site: instance.Berth, runs: int) -> Iterator[tuple[float, float, float]]:
    """Return seconds per release: to its end, then to the next grant, then until that user's app runs."""
    ada, ben = site.api("ada"), site.api("ben")
    people = {
        ada.create("jupyterlab", "one-gpu", name="first")["id"]: ada,
        ben.create("jupyterlab", "one-gpu", name="second")["id"]: ben,
    }
    holder, waits = people
    people[holder].wait(holder, "running", limit_s=LIMIT_S)
    for _ in range(runs + 1):
        people[waits].wait(waits, "pending", limit_s=LIMIT_S)
        began, asked_at = time.time(), time.monotonic()
        people[holder].act(holder, "release-gpu")
        people[waits].wait(waits, "running", limit_s=LIMIT_S)
        runs_after_s = time.monotonic() - asked_at
        free_at = allocation_times(site, holder)[1]
        assert free_at is not None
        got_at = allocation_times(site, waits)[0]
        yield free_at.timestamp() - began, (got_at - free_at).total_seconds(), runs_after_s
        people[holder].wait(holder, "running", limit_s=LIMIT_S)
        people[holder].act(holder, "attach-gpu")
        holder, waits = waits, holder


def main() -> None:
    arguments = parse()
    with berth() as started:
        figures = []
        for number, durations in enumerate(measure(started, arguments.runs)):
            print(
                "  ended after {:.2f} s, next has it after {:.2f} s, runs after {:.2f} s".format(*durations)
            )
            if number:
                figures.append(durations)
    print(f"{len(figures)} releases: seconds, p50 and max")
    names = (
        "from the word until it has ended",
        "from there until the next has it",
        "from the word until the next runs",
    )
    for name, values in zip(names, zip(*figures, strict=True), strict=True):
        print(f"  {name:28} {statistics.median(values):6.2f} {max(values):6.2f}")


if __name__ == "__main__":
    main()
