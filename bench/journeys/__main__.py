"""Count clicks in user journeys: `python -m bench.journeys [--json OUT] [--shots FOLDER] [--workspaces N]`.

Starts a portal as `make up` does, and headless Chromium. Counts clicks and filled fields after sign-in, pages
opened, wall-clock seconds, script errors, responses of 400 and above, and pages wider than the screen. Exits
with 1 if a journey needs more clicks than its limit or shows an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from bench.journeys import site, steps
from bench.journeys.visitor import DESKTOP, PHONE, Journey, Visitor, visit
from tests import instance
from tests.browser import CHROMIUM_ARGS, chromium_path
from tests.instance import Berth

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ViewportSize

Prepare = Callable[[Berth], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A journey, its user, and its limit of clicks."""

    name: str
    username: str
    walk: Callable[[Visitor], None]
    limit: int
    size: ViewportSize
    prepare: Prepare | None = None


def plans(workspaces: int) -> list[Plan]:
    fleet = partial(site.busy_fleet, workspaces=workspaces)
    return [
        Plan("First notebook", "ben", steps.first_notebook, 2, DESKTOP),
        Plan("Administrator's first hour", "admin", steps.first_hour, 40, DESKTOP),
        Plan("Team owner", "ada", steps.team_owner, 12, DESKTOP, site.add_person),
        Plan("Approver on a phone", "ben", steps.approver, 4, PHONE, site.request_more),
        Plan("Operator of 320 GPUs", "admin", steps.operator, 12, DESKTOP, fleet),
    ]


def main() -> int:
    arguments = parse()
    chromium = chromium_path()
    environment = instance.notebook_environment()
    if chromium is None or environment is None:
        print("Needed: Chromium, and the notebook environment (make notebook).", file=sys.stderr)
        return 1
    chosen = [plan for plan in plans(arguments.workspaces) if arguments.only in plan.name]
    journeys, failed = [], False
    with (
        tempfile.TemporaryDirectory() as folder,
        instance.running(Path(folder), environment=environment) as berth,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        for plan in chosen:
            journey = walk(browser, berth, plan, arguments.shots)
            failed |= bool(journey.errors) or journey.clicks > plan.limit
            print(
                f"{plan.name:28} {journey.clicks:3} clicks (limit {plan.limit}), {journey.fields:2} fields, "
                f"{journey.pages:2} pages, {journey.seconds:6.1f} s, {len(journey.errors)} errors",
                *journey.errors,
                sep="\n  ",
                flush=True,
            )
            journeys.append(journey)
        browser.close()
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(journey) for journey in journeys], indent=2))
    return int(failed)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.journeys", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--shots", type=Path, help="folder for a screenshot after each journey")
    parser.add_argument("--workspaces", type=int, default=site.WORKSPACES, help="of the operator's site")
    parser.add_argument("--only", default="", help="only journeys with this in their name")
    return parser.parse_args()


def walk(browser: Browser, berth: Berth, plan: Plan, shots: Path | None) -> Journey:
    if plan.prepare is not None:
        plan.prepare(berth)
    journey = Journey(plan.name, plan.username)
    with visit(browser, berth.url, journey, size=plan.size) as visitor:
        try:
            plan.walk(visitor)
        finally:
            if shots is not None:
                shots.mkdir(parents=True, exist_ok=True)
                visitor.page.screenshot(path=shots / f"{plan.walk.__name__}.png", full_page=True)
    return journey


if __name__ == "__main__":
    sys.exit(main())
