"""Rows of the fleet at the beginning of the week: a pool with the default policy of pools."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone

from bench.fleet_week.devices import DRIVER, MODELS, Gpu, check
from portal.catalog.models import Flavor, Template
from portal.common.domain_events import emit
from portal.fleet.inventory.models import CheckLevel, Device, Pool, PoolState
from portal.fleet.inventory.node_commands import config_of
from portal.gpu_checks import report_reader
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckCause, GpuCheckRun, RunState
from portal.people.accounts.models import Membership, Team, User
from portal.quota.limits import resources
from portal.quota.limits.models import Cohort, Quota, TeamShare
from portal.scheduling.placement_request import request_of
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus
from provisioning.check_messages import CHECK, CheckAnswer, CheckCommand
from provisioning.types import Capability, Inventory, NodeInfo

PER_NODE = 8
SIZES = (1, 2, 4, 8)
BATCH = 500


def fleet(devices: int, chance: random.Random) -> list[Gpu]:
    """Create nodes with eight devices of one model each; models alternate."""
    gpus = []
    for number in range(max(1, devices // PER_NODE)):
        model = MODELS[number % len(MODELS)]
        for index in range(PER_NODE):
            factor = max(0.94, chance.gauss(1.0, 0.015))
            gpus.append(Gpu(f"GPU-{number:04d}-{index}", f"node-{number:04d}", index, model, factor))
    return gpus


def inventory(gpus: Sequence[Gpu], now: float) -> Inventory:
    """Return the current inventory of all nodes."""
    by_node: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    nodes = tuple(
        NodeInfo(
            name=name, cpu_milli=128_000, memory_mib=1_048_576, disk_mib=10_000_000,
            devices=tuple(gpu.info() for gpu in gpus_of_node if not gpu.vanished),
            programs={"bash": "/bin/bash"},
            driver_version=DRIVER, accelerator_state="ok",
        )
        for name, gpus_of_node in by_node.items()
    )  # fmt: skip
    return Inventory(nodes, frozenset({Capability.WHOLE_GPU}), now)


class Site:
    """The pool, with default settings except for `policy`, and the only team that requests its devices."""

    def __init__(self, policy: Mapping[str, Any]) -> None:
        # It has the policy of a pool of real devices. Reports about its devices are marked as simulated.
        self.pool = Pool.objects.create(
            slug="fleet", name="Fleet", driver="local", simulated=True, state=PoolState.ONLINE,
            # One user asks for everything, so homes of single nodes would keep all work on one node.
            config={"node": "none", "homes_shared": True}, **policy,
        )  # fmt: skip
        self.team = Team.objects.create(slug="team", name="Team")
        self.user = User.objects.create(username="user", password="!")
        self.operator = User.objects.create(username="operator", password="!", is_operator=True)
        Membership.objects.create(team=self.team, user=self.user)
        TeamShare.objects.create(team=self.team, cohort=Cohort.objects.create(slug="all", name="All"))
        Quota.objects.bulk_create(
            Quota(team=self.team, resource=resources.gpu(model.name), quota=1_000_000) for model in MODELS
        )
        self.template = Template.objects.create(slug="bench", name="Bench", program="bash", argv=["bash"])
        self.flavors = {
            (model.name, size): Flavor.objects.create(
                slug=f"{resources.accelerator_class(model.name)}-x{size}", name=f"{size} × {model.name}",
                cpu_milli=8000 * size, memory_mib=65_536 * size, accelerator_count=size,
                accelerator_model=model.name, pool=self.pool,
            )
            for model in MODELS
            for size in SIZES
        }  # fmt: skip

    def ask(self, model: str, size: int, expected_s: int, name: str) -> Workspace:
        """Create a request that waits for the next queue cycle."""
        now, flavor = timezone.now(), self.flavors[model, size]
        request = flavor.as_request()
        row = Workspace.objects.create(
            name=name, owner=self.user, team=self.team, template=self.template, flavor=flavor,
            resources=request, amounts=resources.amounts_of(request_of(request), simulated=True),
            expected_s=max(60, expected_s), state_since=now, requested_at=now,
        )  # fmt: skip
        QueueEntry.objects.create(workspace=row)
        WorkspaceStatus.objects.create(workspace=row)
        emit(RequestChanged(row))
        return row


def with_history(pool: Pool, gpus: Sequence[Gpu], chance: random.Random) -> None:
    """Give the fleet a history, since the week does not begin with new devices.

    Each device has passed a check of the pool's level within the pool's interval, and a quick check within
    the time that a hand-out allows, both at a random moment.
    """
    now = timezone.now()
    rows = {row.uuid: row for row in Device.objects.select_related("node", "node__pool")}
    runs: list[GpuCheckRun] = []
    for gpu in gpus:
        at = now - timedelta(hours=chance.uniform(0, pool.check_every_hours))
        device = rows[gpu.uuid]
        run = GpuCheckRun(
            device=device, level=pool.check_level, cause=CheckCause.SCHEDULE, state=RunState.DONE,
            simulated=True, finished_at=at, started_at=at,
        )  # fmt: skip
        report, _ = check(gpu, command_of(run, pool), at.timestamp(), random.Random(gpu.uuid))
        result = report_reader.read_check(
            CheckAnswer(CHECK, str(run.pk), "lease", gpu.uuid, report=report.to_dict()), run
        )
        run.verdict, run.summary, run.measures = result.verdict, result.summary, result.measures
        device.passed_at = now - timedelta(hours=chance.uniform(0, pool.hand_out_max_age_hours))
        runs.append(run)
    GpuCheckRun.objects.bulk_create(runs, batch_size=BATCH)
    for run in runs:
        run.created_at = run.finished_at
    GpuCheckRun.objects.bulk_update(runs, ["created_at"], batch_size=BATCH)
    Device.objects.bulk_update(rows.values(), ["passed_at"], batch_size=BATCH)


def command_of(run: GpuCheckRun, pool: Pool) -> CheckCommand:
    return CheckCommand(
        kind=CHECK, run=str(run.pk), lease="lease", pool=config_of(pool), uuid=run.device.uuid,
        level=CheckLevel(run.level).value, expires_at=0.0, deadline_s=handler_of(CHECK).deadline_s(run),
    )  # fmt: skip
