"""Heartbeats of machines, and detection of cloned identities."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.actors import SYSTEM
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import TargetKind
from portal.common.events.services import Target
from portal.fleet.machines.models import Machine, MachineState
from portal.people.accounts.models import User
from provisioning.types import NodeHello

CLONED_FOR = timedelta(days=1)
"""How long pages show a detected clone after it was last seen."""


@transaction.atomic
def record_heartbeat(*, name: str, hello: NodeHello) -> None:
    """Record a heartbeat of the machine `name`, whose signature was verified."""
    machine = (
        Machine.objects.select_for_update(of=("self",))
        .select_related("pool")
        .filter(name=name, state=MachineState.ACTIVE)
        .first()
    )
    if machine is None:
        return
    now = timezone.now()
    cloned = _is_of_another(machine, hello)
    machine.heard_at, machine.clock_off_s = now, round(hello.clock - now.timestamp(), 1)
    if not cloned:
        machine.version = hello.version
    if hello.boot != machine.boot:
        machine.boot, machine.former_boot = hello.boot, machine.boot
    machine.said_s = max(machine.said_s, hello.clock)
    machine.save(update_fields=["heard_at", "clock_off_s", "version", "boot", "former_boot", "said_s"])
    if cloned:
        _note_clone(machine)


@transaction.atomic
def replaced_identity_shown(*, name: str) -> None:
    """Record that a client presented a replaced certificate of the machine."""
    machine = Machine.objects.select_for_update().filter(name=name, state=MachineState.ACTIVE).first()
    if machine is not None:
        _note_clone(machine)


def _is_of_another(machine: Machine, hello: NodeHello) -> bool:
    """Return whether the heartbeat comes from another machine or from a copy of the disk.

    A copy that runs alongside the original has another boot id, so the two ids alternate.
    """
    for reported, stored in ((hello.machine_id, machine.machine_id), (hello.instance, machine.instance)):
        if reported and stored and reported != stored:
            return True
    returned = bool(hello.boot) and hello.boot == machine.former_boot != machine.boot
    return returned and hello.clock > machine.said_s


def _note_clone(machine: Machine) -> None:
    now = timezone.now()
    fresh = machine.cloned_at is None or now - machine.cloned_at > CLONED_FOR
    Machine.objects.filter(pk=machine.pk).update(cloned_at=now)
    if not fresh:
        return
    events.record(
        actor=SYSTEM,
        kind=AuditKind.MACHINE_CLONED,
        pool=machine.pool,
        message=f"found two machines that use the identity of {machine.name}",
        targets=[Target(TargetKind.NODE, machine.name)],
        data={"node": machine.name},
    )
    operators = User.objects.filter(Q(is_operator=True) | Q(is_superuser=True), is_active=True)
    events.notify(
        operators,
        "node.cloned",
        _("Two machines use the keys of %(node)s") % {"node": machine.name},
        _(
            "This happens if a disk was copied. Revoke the machine, and join each of the two "
            "with its own token."
        ),
        f"/pools/{machine.pool.slug}/",
        fold=CLONED_FOR,
    )
