"""A full site in the database: rows of nodes and workspaces, without any running process."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from typing import Any

from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.domain_events import emit
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device, Node, Pool, PoolState
from portal.people.accounts.models import Membership, Team, User
from portal.quota.limits import resources
from portal.quota.limits.models import Cohort, Quota, TeamShare
from portal.scheduling.placement_request import request_of
from portal.workspaces.domain_events import RequestChanged
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus

MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
SPARE = "Tesla T4"
PER_NODE = 8
TEAMS = 100
CONFIGS: dict[str, dict[str, Any]] = {
    "apart": {"node": "none"},
    "shared": {"node": "none", "homes_shared": True, "homes": "/homes"},
}
"""Configuration of the pool by location of its homes: on each node (default), or in one shared folder."""
BATCH = 2000


def build(
    devices: int, workspaces: int, waiting: int, *, spare: int = 0, seed: int = 1, homes: str = "apart"
) -> None:
    """Fill an empty database with `workspaces`, of which `waiting` are queued and all others run.

    `spare` devices of a separate model stay free. Queued workspaces request devices that are in use.
    """
    chance = random.Random(seed)
    now = timezone.now()
    pool = Pool.objects.create(
        slug="big",
        name="Big",
        driver="local",
        state=PoolState.ONLINE,
        config=CONFIGS[homes],
        hand_out_max_age_hours=0,
    )
    teams, users = _teams()
    template = Template.objects.create(slug="bench", name="Bench", program="bash", argv=["bash"])
    flavors = [
        Flavor.objects.create(
            slug=f"{resources.accelerator_class(model)}-x{count}",
            name=f"{count} × {model}",
            cpu_milli=8000 * count,
            memory_mib=32_768 * count,
            accelerator_count=count,
            accelerator_model=model,
            pool=pool,
        )
        for model in (*MODELS, SPARE)
        for count in (1, 2, 4)
    ]
    nodes = [
        Node(
            pool=pool,
            name=f"node-{index:05d}",
            cpu_milli=128_000,
            memory_mib=1_048_576,
            disk_mib=10_000_000,
            online=True,
            programs={"bash": "/bin/bash"},
            seen_at=now,
        )
        for index in range((devices + spare) // PER_NODE)
    ]
    Node.objects.bulk_create(nodes, batch_size=BATCH)
    rows = [
        Device(
            node=node,
            uuid=f"GPU-{node.name}-{slot}",
            index=slot,
            model=MODELS[index % len(MODELS)] if index < devices // PER_NODE else SPARE,
            memory_mib=81_920,
        )
        for index, node in enumerate(nodes)
        for slot in range(PER_NODE)
    ]
    Device.objects.bulk_create(rows, batch_size=BATCH)
    free: dict[str, list[Device]] = {model: [] for model in (*MODELS, SPARE)}
    for device in rows:
        free[device.model].append(device)
    _run(chance, now, workspaces - waiting, teams, users, template, flavors, pool, free)
    four_gpu_flavors = [
        flavor for flavor in flavors if flavor.accelerator_count == 4 and flavor.accelerator_model != SPARE
    ]
    _wait(chance, now, waiting, teams, users, template, four_gpu_flavors)


def _teams() -> tuple[list[Team], list[User]]:
    teams = Team.objects.bulk_create(Team(slug=f"team-{n}", name=f"Team {n}") for n in range(TEAMS))
    users = User.objects.bulk_create(User(username=f"user-{n}", password="!") for n in range(TEAMS))
    Membership.objects.bulk_create(
        Membership(team=team, user=user) for team, user in zip(teams, users, strict=True)
    )
    cohorts = Cohort.objects.bulk_create(Cohort(slug=f"cohort-{n}", name=f"Cohort {n}") for n in range(10))
    TeamShare.objects.bulk_create(
        TeamShare(team=team, cohort=cohorts[n % 10]) for n, team in enumerate(teams)
    )
    Quota.objects.bulk_create(
        Quota(team=team, resource=resources.gpu(model), quota=40_000)
        for team in teams
        for model in (*MODELS, SPARE)
    )
    return teams, users


def _row(chance, now, number, teams, users, template, flavor, state) -> Workspace:
    index = chance.randrange(TEAMS)
    request = flavor.as_request()
    age = dt.timedelta(seconds=chance.randrange(60, 20_000))
    return Workspace(
        name=f"w{number}",
        owner=users[index],
        team=teams[index],
        template=template,
        flavor=flavor,
        resources=request,
        amounts=resources.amounts_of(request_of(request)),
        expected_s=chance.randrange(1, 48) * 3600,
        state=state,
        state_since=now - age,
        requested_at=now - age,
    )


def _run(chance, now, count, teams, users, template, flavors, pool, free) -> None:
    singles = [
        candidate
        for candidate in flavors
        if candidate.accelerator_count == 1 and candidate.accelerator_model != SPARE
    ]
    created, allocations, held = [], [], []
    for number in range(count):
        flavor = chance.choice(singles)
        if not free[flavor.accelerator_model]:
            flavor = next(single for single in singles if free[single.accelerator_model])
        row = _row(chance, now, number, teams, users, template, flavor, State.RUNNING)
        row.pool, row.generation, row.placed_at, row.ready_at = pool, 1, row.requested_at, row.requested_at
        device = free[flavor.accelerator_model].pop()
        allocation = Allocation(
            workspace=row,
            node=device.node,
            generation=1,
            cpu_milli=flavor.cpu_milli,
            memory_mib=flavor.memory_mib,
            granted_at=now,
        )
        created.append(row)
        allocations.append(allocation)
        held.append(AllocatedDevice(allocation=allocation, device=device))
    _write(created)
    Allocation.objects.bulk_create(allocations, batch_size=BATCH)
    AllocatedDevice.objects.bulk_create(held, batch_size=BATCH)


def _wait(chance, now, count, teams, users, template, flavors) -> None:
    _write(
        _row(chance, now, f"q{number}", teams, users, template, chance.choice(flavors), State.PENDING)
        for number in range(count)
    )


def newcomers(team: Team, count: int) -> list[User]:
    """Create users of the team without a home, so that no node is preferred for their first start."""
    before = User.objects.count()
    users = User.objects.bulk_create(
        User(username=f"newcomer-{before + n}", password="!") for n in range(count)
    )
    Membership.objects.bulk_create(Membership(team=team, user=user) for user in users)
    return users


def submit(rows: Iterable[Workspace]) -> None:
    """Insert requests as the services do, with their related rows, and notify the queue."""
    _changed(_write(rows))


def withdraw_waiting() -> None:
    """Withdraw all queued requests."""
    waiting = list(Workspace.objects.filter(state=State.PENDING).only("pk", "team"))
    Workspace.objects.filter(pk__in=[row.pk for row in waiting]).update(state=State.TERMINATED)
    _changed(waiting)


def _write(rows: Iterable[Workspace]) -> list[Workspace]:
    created = Workspace.objects.bulk_create(rows, batch_size=BATCH)
    QueueEntry.objects.bulk_create((QueueEntry(workspace=row) for row in created), batch_size=BATCH)
    WorkspaceStatus.objects.bulk_create((WorkspaceStatus(workspace=row) for row in created), batch_size=BATCH)
    return created


def _changed(rows: Iterable[Workspace]) -> None:
    for row in rows:
        emit(RequestChanged(row))
