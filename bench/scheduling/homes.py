"""Waits of users on machines with home folders: homes that are shared, stay, or move with a start.

    python -m bench.scheduling.homes [--people 60] [--nodes 10] [--days 4] [--loads 60 90] [--json OUT]

Users, nodes and the clock are simulated. Every decision is the portal's, on an empty SQLite file: each start
is previewed as in the form, created and placed by a cycle, and its home is moved by the mover. Each user
starts a workspace, works, stops it and returns later, one workspace at a time. A load is the part of the GPUs
that would be in use if nobody waited. The wait is from the click until the start is sent, including moves.
The first 6 hours are not counted. Users whose home is too large to move automatically accept the form's offer
to move it.

ASSUMPTIONS: sessions of 3 hours (median) without an expected duration; 1, 2 or 4 GPUs; homes of 2 GiB
(median), a tenth above 10 GiB; a network of 1 Gbit/s; one move at a time per machine.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR_S, DAY_S = 3600.0, 86_400.0
WARM_UP_S = DAY_S / 4
PER_NODE = 8
SIZES = ((1, 0.6), (2, 0.3), (4, 0.1))
SESSION_MEDIAN_H, SESSION_SIGMA = 3.0, 0.8
HOME_MEDIAN_MIB, HOME_SIGMA = 2048.0, 1.25
NETWORK_MIB_S = 100
LIMIT_MIB = 10_240
STEP_S = 10.0
"""Longest time for which a node copies before it answers."""
TICK_S = 60.0
WORLDS = {"shared": {"homes_shared": True, "homes": "/homes"}, "stay": {}, "move": {}}


@dataclass(slots=True)
class Waits:
    """Seconds from the click until the start is sent, and results of previews."""

    seconds: list[float] = field(default_factory=list)
    moved: int = 0
    broken_previews: int = 0
    busy_gpu_s: float = 0.0

    def summary(self, gpus: int, days: float) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        waited = [seconds for seconds in ordered if seconds > TICK_S]
        return {
            "starts": len(ordered),
            "waited_over_1_min_pct": round(100 * len(waited) / max(1, len(ordered)), 1),
            "mean_s": round(sum(ordered) / max(1, len(ordered)), 1),
            "p95_s": round(_at(ordered, 95), 1),
            "p99_s": round(_at(ordered, 99), 1),
            "max_s": round(ordered[-1], 1) if ordered else 0,
            "moves": self.moved,
            "previews_not_kept": self.broken_previews,
            "utilisation_pct": round(100 * self.busy_gpu_s / (gpus * days * DAY_S), 1),
        }


def _at(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


class Days:
    """Users on machines for some days."""

    def __init__(self, world: str, load: float, people: int, nodes: int, days: int, seed: int) -> None:
        self.world, self.days = world, days
        self.chance = random.Random(seed)
        self.nodes, self.people = nodes, people
        session_s = HOUR_S * SESSION_MEDIAN_H * math.exp(SESSION_SIGMA**2 / 2)
        at_work = load * nodes * PER_NODE / (people * sum(size * part for size, part in SIZES))
        self.pause_s = session_s * (1 - at_work) / at_work
        self.waits = Waits()
        self.now_s = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.cycle_due = False
        self.asked_s: dict[UUID, float] = {}
        self.copied: dict[str, float] = {}

    def at(self, seconds: float, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + seconds, self.count, work))

    def run(self) -> Waits:
        import time_machine

        from bench.admission.__main__ import NoOpRedis
        from portal.celery import app
        from portal.common import rate_limits
        from portal.common.events import live
        from portal.scheduling import snapshot_cache
        from portal.workspaces.gateway import file_tickets

        with (
            mock.patch.object(app, "send_task", self._sent),
            mock.patch.object(live, "connection", NoOpRedis),
            mock.patch.object(rate_limits, "count", lambda *_: 0),
            mock.patch.multiple(file_tickets, store_home_ticket=_nothing, end_home=_nothing),
            # Reading a snapshot again takes time on the machine, but none on the simulated clock.
            mock.patch.multiple(snapshot_cache, KEPT_S=HOUR_S, MAX_KEPT_S=HOUR_S),
            time_machine.travel(START, tick=False) as clock,
        ):
            self._begin()
            while self.queue[0][0] <= self.days * DAY_S:
                self.now_s, _, work = heapq.heappop(self.queue)
                clock.move_to(START.timestamp() + self.now_s)
                work()
        return self.waits

    def _begin(self) -> None:
        from portal.catalog.models import Flavor, Template
        from portal.people.accounts.models import Membership, Team, User
        from tests.factories import local_pool_with, node_info

        pool = local_pool_with(
            *(
                node_info(f"gpu-{number:02}", gpus=PER_NODE, cpu_milli=128_000, memory_mib=1_048_576)
                for number in range(1, self.nodes + 1)
            )
        )
        pool.config |= WORLDS[self.world]
        pool.hand_out_max_age_hours = 0
        pool.save()
        self.team = Team.objects.create(slug="team", name="Team")
        self.template = Template.objects.create(slug="bench", name="Bench", program="bash", argv=["bash"])
        self.flavors = [
            Flavor.objects.create(
                slug=f"x{size}", name=f"x{size}", accelerator_count=size, cpu_milli=4000 * size,
                memory_mib=16_384 * size, disk_mib=1024,
            )
            for size, _ in SIZES
        ]  # fmt: skip
        self.sizes = {}
        for number in range(self.people):
            user = User.objects.create(username=f"user-{number:03}", password="!")
            Membership.objects.create(team=self.team, user=user)
            self.sizes[user.pk] = int(HOME_MEDIAN_MIB * self.chance.lognormvariate(0, HOME_SIGMA))
            self.at(self.chance.uniform(0, self.pause_s), lambda user=user: self._arrive(user))
        self.at(TICK_S, self._tick)
        self.at(HOUR_S, self._hour)

    # --- people ---

    def _arrive(self, user: Any) -> None:
        """Open the form, click, and wait for the start."""
        from portal.scheduling import admission, home_offers
        from portal.workspaces import services
        from portal.workspaces.order import WorkspaceOrder

        flavor = self.chance.choices(self.flavors, [part for _, part in SIZES])[0]
        fields = {"template": self.template, "flavor": flavor, "team": self.team}
        verdict = admission.assess(**fields, actor=user)
        offer = home_offers.verdict_with_home_move(
            verdict, **fields, actor=user, expected_s=None, environment=""
        )
        move_home = offer is not None and self.world == "move"
        order = WorkspaceOrder(**fields, move_home=move_home)
        workspace = services.create(actor=user, order=order).workspace
        verdict = offer if move_home else verdict
        if verdict.starts_now != (workspace.pool_id is not None) or (
            workspace.waits_for_home != (verdict.home_move is not None)
        ):
            self.waits.broken_previews += 1
        self.waits.moved += workspace.waits_for_home
        self.asked_s[workspace.pk] = self.now_s

    def _started(self, key: UUID, gpus: int) -> None:
        asked_s = self.asked_s.pop(key, None)
        if asked_s is None:
            return
        session_s = HOUR_S * SESSION_MEDIAN_H * self.chance.lognormvariate(0, SESSION_SIGMA)
        if asked_s >= WARM_UP_S:
            self.waits.seconds.append(self.now_s - asked_s)
        counted_s = min(self.now_s + session_s, self.days * DAY_S) - max(self.now_s, WARM_UP_S)
        self.waits.busy_gpu_s += gpus * max(0.0, counted_s)
        self.at(session_s, lambda: self._leave(key))

    def _leave(self, key: UUID) -> None:
        """Stop and delete the workspace; the node confirms at once."""
        from portal.scheduling import snapshot_feed
        from portal.scheduling.hints import request_cycle
        from portal.workspaces import reconcile, services
        from portal.workspaces.lifecycle import State
        from portal.workspaces.models import Workspace

        workspace = Workspace.objects.select_related("owner").get(pk=key)
        services.delete(actor=workspace.owner, workspace_id=key)
        Workspace.objects.filter(pk=key).update(state=State.TERMINATED, next_reconcile_at=None, lease="")
        reconcile.release(workspace, used=False)
        snapshot_feed.workloads([key])
        request_cycle()
        self._measure(workspace.owner)
        pause_s = self.chance.expovariate(1 / self.pause_s)
        self.at(pause_s, lambda: self._arrive(workspace.owner))

    def _measure(self, user: Any) -> None:
        """Report the size of the user's home, as its node does."""
        from django.utils import timezone

        from portal.workspaces.models import HomePlace, HomeUsage

        for place in HomePlace.objects.filter(owner=user):
            HomeUsage.objects.update_or_create(
                owner=user,
                team_id=place.team_id,
                node_id=place.node_id,
                defaults={"used_mib": self.sizes[user.pk], "measured_at": timezone.now()},
            )

    # --- the clock of the control plane ---

    def _tick(self) -> None:
        from portal.scheduling import cycle
        from portal.workspaces.homes import moves

        self.at(TICK_S, self._tick)
        if self.asked_s:
            moves.sweep()
            cycle.run_if_due()

    def _hour(self) -> None:
        from portal.scheduling import snapshot_feed
        from portal.workspaces.homes import load

        self.at(HOUR_S, self._hour)
        load.measure()
        snapshot_feed.trim()

    def _cycle(self) -> None:
        from portal.scheduling import cycle

        self.cycle_due = False
        cycle.run()

    # --- messages to nodes and workers ---

    def _sent(self, name: str, args: Any = None, kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        from portal.workspaces import reconcile
        from portal.workspaces.homes import moves

        kwargs = json.loads(json.dumps(kwargs or {}))
        match name:
            case "node.execute" if kwargs["command"]["op"] == "start":
                key = UUID(kwargs["command"]["ref"]["workspace_id"])
                accelerators = kwargs["command"]["spec"]["resources"]["accelerators"]
                # The click to which it belongs may not be recorded yet.
                self.at(0.0, lambda: self._started(key, accelerators["count"]))
            case "node.move_home":
                self._moves(kwargs["order"])
            case "control.move_homes":
                self.at(0.5, lambda: moves.sweep() and None)
            case "control.reconcile":
                key = UUID(kwargs["workspace_id"])
                self.at(0.1, lambda: reconcile.reconcile(key))
            case "control.schedule" if not self.cycle_due:
                self.cycle_due = True
                self.at(0.2, self._cycle)
            case _:
                pass

    def _moves(self, data: dict[str, Any]) -> None:
        """Do one step of a move, as a node does."""
        from portal.workspaces.homes import moves
        from portal.workspaces.models import HomeMove
        from provisioning import messages
        from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase

        order = messages.load(data, HomeMoveOrder)
        if order.do is not MoveCommand.FETCH:
            answer = HomeMoved(order.move, order.lease, order.do, done=True)
            self.at(0.5, lambda: moves.apply(answer) and None)
            return
        owner = HomeMove.objects.get(pk=order.move).owner
        total = float(self.sizes[owner.pk])
        before = self.copied.get(order.move, 0.0)
        after = min(total, before + STEP_S * NETWORK_MIB_S)
        self.copied[order.move] = after
        done = after >= total
        answer = HomeMoved(
            order.move, order.lease, order.do, done=done,
            phase=MovePhase.PLACED if done else MovePhase.COPYING,
            bytes_done=int(after) << 20, bytes_total=int(total) << 20,
        )  # fmt: skip

        def arrive() -> None:
            moves.apply(answer)
            if done:
                self._measure(owner)

        self.at((after - before) / NETWORK_MIB_S + 0.5, arrive)


def _nothing(*_: object, **__: object) -> None:
    return None


def set_up(database: Path, limit_mib: int = 0) -> None:
    """Set up Django for a database in a separate process, since settings are read once."""
    os.environ["DATABASE_URL"] = f"sqlite:///{database}"
    os.environ["BERTH_MOVE_HOME_LIMIT_MIB"] = str(limit_mib)
    os.environ.setdefault("BERTH_LOG_LEVEL", "ERROR")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()


def migrate(database: Path) -> None:
    set_up(database)
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def run_world(world: str, load: float, empty: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one world in a copy of the empty database, and return its waits."""
    database = empty.with_name(f"{world}-{load}.sqlite3")
    shutil.copy(empty, database)
    set_up(database, 0 if world == "stay" else LIMIT_MIB)
    began = time.process_time()
    days = Days(world, load, arguments.people, arguments.nodes, arguments.days, arguments.seed)
    row = days.run().summary(arguments.nodes * PER_NODE, arguments.days - WARM_UP_S / DAY_S)
    return {"world": world, "load_pct": round(100 * load), **row, "cpu_s": round(time.process_time() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling.homes", description=__doc__)
    parser.add_argument("--people", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--loads", type=int, nargs="+", default=[60, 90], help="per cent of the GPUs")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        empty = Path(folder) / "empty.sqlite3"
        _in_own_process(migrate, empty)
        for load in arguments.loads:
            for world in arguments.worlds:
                rows.append(_in_own_process(run_world, world, load / 100, empty, arguments))
                print(json.dumps(rows[-1]), flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def _in_own_process(work: Callable[..., Any], *values: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *values).result()


if __name__ == "__main__":
    main()
