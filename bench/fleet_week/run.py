"""Run the week event by event on a simulated clock. Messages of nodes go to the portal's own functions."""

from __future__ import annotations

import heapq
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock
from uuid import UUID

import time_machine
from django.utils import timezone

from bench.admission.__main__ import NoOpRedis
from bench.fleet_week import devices, faults, site
from bench.fleet_week.devices import Gpu
from bench.fleet_week.faults import CLASSES, FaultClass
from portal.celery import app
from portal.common.errors import PortalError
from portal.common.events import live
from portal.fleet.inventory.models import AllocatedDevice, Device
from portal.fleet.inventory.services import apply_inventory
from portal.gpu_checks import device_errors, policy, results, runs
from portal.gpu_checks.models import CheckCause
from portal.scheduling import cycle, snapshot_cache
from portal.workspaces import reconcile, services
from portal.workspaces import results as answers
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning import messages
from provisioning.check_messages import SCRUB, CheckAnswer, CheckCommand, DeviceError, DeviceErrors
from provisioning.types import Command, Observation, ObservedState, Op, Result

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR_S, DAY_S = 3600.0, 86_400.0

# ASSUMPTIONS about people and their work.
BUSY = 0.8
SIZES = ((1, 0.60), (2, 0.20), (4, 0.10), (8, 0.10))
HELD_MEDIAN_H, HELD_SIGMA = 24.0, 0.8
NOTICES_AFTER_H = 1.0
"""A user whose work has crashed on a device stops the workspace after this time, on average."""
REPAIR_DELAY_H = 4.0
"""An operator repairs a device that is out and free after this time, and requests a check."""

REPORT_DELAY_S = 5.0
"""Maximum delay of the watcher."""
INVENTORY_S = 60.0
STARTS_S, ENDS_S = 3.0, 5.0
CYCLE_S = 60.0
"""Queue cycles that are requested within this time are merged. A real cycle starts immediately."""


class NoOpLiveRedis(NoOpRedis):
    """Replaces Redis, without browsers and gateways."""

    def eval(self, *_: object) -> int:
        return 0


@contextmanager
def log_disabled(log: logging.Logger) -> Iterator[None]:
    """Suppress the log lines about XIDs of applications, which the portal ignores as it should."""
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


@dataclass(slots=True)
class Case:
    """A fault, with its beginning and end."""

    fault: str
    uuid: str
    at_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class Week:
    """Events of the week, for the report; the audit log has the portal's reactions."""

    devices: int
    days: float
    cases: list[Case] = field(default_factory=list)
    check_s: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    application_xids: int = 0
    work_gpu_s: float = 0.0
    bad_work_gpu_s: Counter[str] = field(default_factory=Counter)
    unknown_tasks: Counter[str] = field(default_factory=Counter)


OnDay = Callable[[Week], object]


class Fleet:
    """Devices, users and the clock. `rate` multiplies the published rates of faults.

    `on_day` is called after each day with the events so far. The pool has default settings except for
    `policy`.
    """

    def __init__(
        self, count: int, days: int, seed: int, *, rate: float, tick_s: float, on_day: OnDay, **policy: Any
    ) -> None:
        self.policy = policy
        self.chance = random.Random(seed)
        self.gpus = {gpu.uuid: gpu for gpu in site.fleet(count, self.chance)}
        self.end_s, self.rate, self.tick_s = days * DAY_S, rate, tick_s
        self.week, self.on_day = Week(len(self.gpus), days), on_day
        self.now_s = 0.0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.cycle_due = False
        self.held: dict[UUID, tuple[float, tuple[str, ...]]] = {}
        self.ends: dict[UUID, float] = {}
        self.mending: set[str] = set()
        self.open_cases: dict[str, Case] = {}
        held_h = HELD_MEDIAN_H * math.exp(HELD_SIGMA**2 / 2)
        size = sum(size * part for size, part in SIZES)
        self.between_s = HOUR_S * held_h * size / (BUSY * len(self.gpus))

    # --- the clock ---

    def at(self, seconds: float, work: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + seconds, self.count, work))

    def run(self) -> Week:
        with (
            mock.patch.object(app, "send_task", self._sent),
            mock.patch.object(live, "connection", NoOpLiveRedis),
            log_disabled(device_errors.log),
            # Reading a snapshot again takes time on the machine, but none on the simulated clock.
            mock.patch.multiple(snapshot_cache, MIN_MAX_AGE_S=HOUR_S, MAX_AGE_S=HOUR_S),
            time_machine.travel(START, tick=False) as clock,
        ):
            self._begin()
            while self.queue[0][0] <= self.end_s:
                self.now_s, _, work = heapq.heappop(self.queue)
                clock.move_to(START.timestamp() + self.now_s)
                work()
        return self.week

    def _begin(self) -> None:
        self.site = site.Site(self.policy)
        self._report_inventory()
        site.with_history(self.site.pool, list(self.gpus.values()), self.chance)
        for gpu in self.gpus.values():
            for fault in CLASSES:
                if self.chance.random() < fault.at_start * self.rate:
                    self._break(gpu, fault)
        for fault in CLASSES:
            self._next_fault(fault)
        self._next_application_xid()
        busy = int(BUSY * len(self.gpus))
        while busy > 0:
            busy -= self._start_arrival()
        self._next_arrival()
        self.at(1.0, self._run_due_work)
        self.at(DAY_S, self._day_ends)

    def _day_ends(self) -> None:
        self.at(DAY_S, self._day_ends)
        for key, (_, uuids) in list(self.held.items()):
            self._account(key)
            self.held[key] = (self.now_s, uuids)
        self.on_day(replace(self.week, days=self.now_s / DAY_S))

    # --- faults ---

    def _next_fault(self, fault: FaultClass) -> None:
        per_s = fault.per_gpu_hour * self.rate * len(self.gpus) / HOUR_S
        if per_s:
            self.at(self.chance.expovariate(per_s), lambda: self._fault(fault))

    def _fault(self, fault: FaultClass) -> None:
        self._next_fault(fault)
        gpu = self.chance.choice(list(self.gpus.values()))
        if gpu.fault is None and not (fault.links_down and not gpu.model.links):
            self._break(gpu, fault)

    def _break(self, gpu: Gpu, fault: FaultClass) -> None:
        self._account_of(gpu)
        gpu.break_down(fault, self.now_s, self.chance)
        case = Case(fault.name, gpu.uuid, self.now_s)
        self.week.cases.append(case)
        self.open_cases[gpu.uuid] = case
        xids = [xid for xid in fault.xids if self.chance.random() < faults.XID_TOLD]
        if xids:
            self.at(REPORT_DELAY_S, lambda: self._report_xids(gpu, xids))
        if fault.vanishes:
            self.at(self.chance.uniform(0, INVENTORY_S), self._report_inventory)
        if fault.crashes:
            for key in self._holders(gpu):
                after_s = self.chance.expovariate(1 / (NOTICES_AFTER_H * HOUR_S))
                self.at(after_s, lambda key=key: self._leave(key))

    def _report_xids(self, gpu: Gpu, xids: list[int]) -> None:
        errors = tuple(
            DeviceError(gpu.slot, xid, f"NVRM: Xid (PCI:{gpu.slot}): {xid}, pid=1, name=python")
            for xid in xids
        )
        device_errors.apply(DeviceErrors(self.site.pool.slug, gpu.node, errors))

    def _next_application_xid(self) -> None:
        per_s = faults.APPLICATION_XIDS_PER_GPU_HOUR * BUSY * len(self.gpus) / HOUR_S
        self.at(self.chance.expovariate(per_s), self._application_xid)

    def _application_xid(self) -> None:
        self._next_application_xid()
        uuids = [uuid for _, uuids in self.held.values() for uuid in uuids]
        if uuids:
            self.week.application_xids += 1
            xid = self.chance.choice(faults.APPLICATION_XIDS)
            self._report_xids(self.gpus[self.chance.choice(uuids)], [xid])

    def _report_inventory(self) -> None:
        now = START.timestamp() + self.now_s
        apply_inventory(pool=self.site.pool, inventory=site.inventory(list(self.gpus.values()), now))

    # --- people ---

    def _next_arrival(self) -> None:
        self.at(self.chance.expovariate(1 / self.between_s), self._arrival)

    def _arrival(self) -> None:
        self._next_arrival()
        self._start_arrival()

    def _start_arrival(self) -> int:
        size = self.chance.choices([n for n, _ in SIZES], [part for _, part in SIZES])[0]
        model = self.chance.choice(list(self.gpus.values())).model.name
        held_s = HOUR_S * HELD_MEDIAN_H * self.chance.lognormvariate(0, HELD_SIGMA)
        self.week.sessions += 1
        row = self.site.ask(model, size, min(int(held_s), 20 * 86_400), f"w{self.week.sessions}")
        self.ends[row.pk] = held_s
        self._schedule_cycle()
        return size

    def _leave(self, key: UUID) -> None:
        if key in self.ends:
            del self.ends[key]
            services.delete(actor=self.site.user, workspace_id=key)

    def _holders(self, gpu: Gpu) -> list[UUID]:
        return [key for key, (_, uuids) in self.held.items() if gpu.uuid in uuids]

    def _account(self, key: UUID) -> None:
        """Add the workspace's time on its devices to the sums; on a faulty device, also by class of fault."""
        since_s, uuids = self.held.pop(key)
        for uuid in uuids:
            gpu = self.gpus[uuid]
            self.week.work_gpu_s += self.now_s - since_s
            if gpu.fault is not None:
                self.week.bad_work_gpu_s[gpu.fault.name] += self.now_s - max(since_s, gpu.since_s)

    def _account_of(self, gpu: Gpu) -> None:
        for key in self._holders(gpu):
            uuids = self.held[key][1]
            self._account(key)
            self.held[key] = (self.now_s, uuids)

    # --- the clock of the control plane, and operators ---

    def _run_due_work(self) -> None:
        self.at(self.tick_s, self._run_due_work)
        policy.run()
        # Running workspaces need no attention, since they send no heartbeats here.
        due = Workspace.objects.filter(next_reconcile_at__lte=timezone.now()).exclude(state=State.RUNNING)
        for key in list(due.values_list("pk", flat=True)):
            reconcile.reconcile(key)
        for uuid in Device.objects.filter(cordoned=True).values_list("uuid", flat=True):
            self._schedule_repair(uuid)
        for uuid in Device.objects.filter(present=False).values_list("uuid", flat=True):
            self._schedule_repair(uuid)

    def _schedule_repair(self, uuid: str) -> None:
        if uuid not in self.mending:
            self.mending.add(uuid)
            self.at(REPAIR_DELAY_H * HOUR_S, lambda: self._repair(uuid))

    def _repair(self, uuid: str) -> None:
        gpu = self.gpus[uuid]
        if AllocatedDevice.objects.filter(device__uuid=uuid, active=True).exists():
            self.at(HOUR_S, lambda: self._repair(uuid))
            return
        self.mending.discard(uuid)
        had_vanished = gpu.vanished
        if case := self.open_cases.pop(uuid, None):
            case.ended_s = self.now_s
        gpu.repair()
        if had_vanished:
            # Its return to the inventory makes the portal check it.
            self._report_inventory()
            return
        device = Device.objects.get(uuid=uuid)
        if device.cordoned:
            try:
                runs.request_check(actor=self.site.operator, device_id=device.pk, cause=CheckCause.OPERATOR)
            except PortalError:
                self._schedule_repair(uuid)

    def _schedule_cycle(self) -> None:
        if not self.cycle_due:
            self.cycle_due = True
            self.at(CYCLE_S, self._cycle)

    def _cycle(self) -> None:
        self.cycle_due = False
        cycle.run_if_due()

    # --- messages to nodes and workers ---

    def _sent(self, name: str, args: Any = None, kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        kwargs = json.loads(json.dumps(kwargs or {}))
        match name:
            case "node.gpu_check" | "node.gpu_scrub":
                self._check_begins(messages.load(kwargs["command"], CheckCommand))
            case "node.execute":
                self._execute(messages.load(kwargs["command"], Command))
            case "control.schedule":
                self._schedule_cycle()
            case "control.reconcile":
                self.at(0.1, lambda: reconcile.reconcile(UUID(kwargs["workspace_id"])))
            case _:
                self.week.unknown_tasks[name] += 1

    def _check_begins(self, command: CheckCommand) -> None:
        gpu = self.gpus[command.uuid]
        now = START.timestamp() + self.now_s
        if command.kind == SCRUB:
            result, took_s = devices.scrub(gpu, command)
            report = messages.dump(result)
        else:
            check_report, took_s = devices.check(gpu, command, now, self.chance)
            report = check_report.to_dict()
        name = SCRUB if command.kind == SCRUB else command.level
        self.week.checks[name] += 1
        self.week.check_s[name] += took_s
        run = UUID(command.run)
        progress = {"phase": "start", "test": "canary"}
        for after_s in (0.5, *range(30, int(took_s), 30)):
            self.at(
                after_s,
                lambda: results.apply_progress(run_id=run, lease=command.lease, progress=progress),
            )
        answer = CheckAnswer(command.kind, command.run, command.lease, command.uuid, report=report)
        self.at(took_s, lambda: results.apply_answer(answer))

    def _execute(self, command: Command) -> None:
        if command.op is Op.START:
            self.at(STARTS_S, lambda: self._started(command))
        elif command.op in (Op.DELETE, Op.STOP):
            self.at(ENDS_S, lambda: self._ended(command))
        else:
            self.at(1.0, lambda: self._answer(command, ObservedState.RUNNING, ready=True))

    def _answer(self, command: Command, state: ObservedState, **fields: Any) -> bool:
        observation = Observation(ref=command.ref, state=state, **fields)
        return answers.apply_result(
            Result(op=command.op, ref=command.ref, lease=command.lease, observation=observation)
        )

    def _started(self, command: Command) -> None:
        key = UUID(command.ref.workspace_id)
        if not self._answer(command, ObservedState.RUNNING, ready=True, endpoint="http://127.0.0.1:1"):
            return
        uuids = AllocatedDevice.objects.filter(active=True, allocation__workspace=key)
        self.held[key] = (self.now_s, tuple(uuids.values_list("device__uuid", flat=True)))
        if key in self.ends:
            self.at(self.ends[key], lambda: self._leave(key))
        for uuid in self.held[key][1]:
            fault = self.gpus[uuid].fault
            if fault is not None and fault.crashes:
                self.at(NOTICES_AFTER_H * HOUR_S, lambda: self._leave(key))

    def _ended(self, command: Command) -> None:
        key = UUID(command.ref.workspace_id)
        observed = ObservedState.ABSENT if command.op is Op.DELETE else ObservedState.STOPPED
        self._answer(command, observed)
        if key in self.held:
            self._account(key)
        self.ends.pop(key, None)
