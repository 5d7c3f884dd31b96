"""Removes a machine, with the workspaces placed there and the homes stored only there.

This is the only place that releases capacity without a confirmed absence. The machine must have left or be
revoked, and an operator must type its name to confirm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from portal.common.errors import InvalidInput, StateConflict
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Device, Node
from portal.fleet.machines import selectors as machines
from portal.fleet.machines import services
from portal.fleet.machines.models import Machine, MachineState
from portal.fleet.machines.removal_policy import MachineRemovalPolicy
from portal.people.accounts.models import User
from portal.people.accounts.policies import require_operator
from portal.workspaces import machine_losses
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import HomeArchive, HomeArchiveState, HomePlace, Workspace
from provisioning.types import home_key

MAX_NAMED = 500
KEPT = (HomeArchiveState.READY, HomeArchiveState.RESTORING)
"""States of archives that contain a complete home."""


@dataclass(frozen=True, slots=True)
class RemovalLosses:
    """Losses from removing a machine: up to `MAX_NAMED` names of workspaces and homes, and their counts.

    `archive_count` archives on the machine are lost too. `archived` are homes that also have an archive on
    another machine.
    """

    machine: Machine
    workspaces: tuple[str, ...]
    workspace_count: int
    homes: tuple[str, ...]
    home_count: int
    archive_count: int
    archived: tuple[str, ...]
    devices: int

    @property
    def any(self) -> bool:
        """Whether the name has to be typed to confirm."""
        return bool(self.workspace_count or self.home_count)


def losses_of(actor: User, machine_id: UUID) -> RemovalLosses:
    """Return the losses if the machine were removed now. Raises `NotFound`, `NotAllowed`."""
    machine = machines.machine(actor, machine_id)
    workspaces = machine_losses.workspaces_on_node(machine.pool_id, machine.name)
    homes = HomePlace.objects.filter(node__pool=machine.pool_id, node__name=machine.name)
    rows = workspaces.select_related("owner", "team").order_by("team__slug", "owner__username", "name")
    places = homes.select_related("owner", "team").order_by("team__slug", "owner__username")
    ready = HomeArchive.objects.filter(pool=machine.pool_id, state__in=KEPT)
    cut_off = Machine.objects.filter(pool=machine.pool_id).exclude(state=MachineState.ACTIVE)
    on_others = ready.exclude(node_name=machine.name).exclude(node_name__in=cut_off.values("name"))
    on_others = on_others.filter(node__retired=False)
    archived = set(on_others.values_list("owner", "team"))
    examples = tuple(_name(row) for row in rows[:MAX_NAMED])
    keys = tuple(home_key(place.team.slug, place.owner.username) for place in places[:MAX_NAMED])
    return RemovalLosses(
        machine,
        examples,
        workspaces.count(),
        keys,
        homes.count(),
        ready.filter(node__name=machine.name).count(),
        tuple(
            home_key(place.team.slug, place.owner.username)
            for place in places[:MAX_NAMED]
            if (place.owner_id, place.team_id) in archived
        ),
        Device.objects.filter(node__pool=machine.pool_id, node__name=machine.name).count(),
    )


class KeepMachinesWithHomes(MachineRemovalPolicy):
    """Keeps a machine while homes exist only there, unless their loss is confirmed (`remove`)."""

    def require_removable(self, pool_id: UUID, name: str) -> None:
        count = HomePlace.objects.filter(node__pool=pool_id, node__name=name).count()
        if count:
            raise StateConflict(Reason(WorkspaceCode.NODE_HAS_HOMES, {"count": count, "node": name}))


def remove(*, actor: User, machine_id: UUID, confirm: str, reason: str = "") -> None:
    """Remove a machine that has left or is revoked; `confirm` must be its name.

    Raises `NotFound`, `NotAllowed`, `InvalidInput` for another name, `StateConflict` if the machine is
    joined, and `Unavailable` while Redis still lists it.
    """
    require_operator(actor)
    machine = machines.machine(actor, machine_id)
    if strip_nul(confirm).strip() != machine.name:
        wrong = Reason(
            WorkspaceCode.MACHINE_NOT_NAMED, {"given": strip_nul(confirm)[:63], "node": machine.name}
        )
        raise InvalidInput(wrong, errors={"confirm": [wrong]})
    reason_text = strip_nul(reason).strip()[: services.MAX_REASON]

    def give_up(node: Node) -> dict[str, Any]:
        homes = HomePlace.objects.filter(node=node).select_related("owner", "team").order_by("pk")
        keys = [home_key(home.team.slug, home.owner.username) for home in homes]
        ended = machine_losses.end_all(actor=actor, node=node, reason=reason_text)
        return {"workspaces": sorted(_name(row) for row in ended), "homes": sorted(keys)}

    services.remove(actor=actor, machine_id=machine_id, reason=reason_text, give_up=give_up)


def _name(workspace: Workspace) -> str:
    return f"{home_key(workspace.team.slug, workspace.owner.username)}/{workspace.name}"
