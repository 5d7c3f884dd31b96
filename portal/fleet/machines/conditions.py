"""Conditions of machines, with explanations, for pages, REST and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.fleet.inventory.contact import Contact, contact_of_node
from portal.fleet.inventory.models import Node
from portal.fleet.machines.models import MachineState
from portal.fleet.machines.signs import CLONED_FOR
from provisioning.version import VERSION, is_compatible

SILENT_AFTER = timedelta(seconds=60)
CLOCK_SHOWN_S = 30.0
EXPIRES_SOON = timedelta(days=14)


class Condition(StrEnum):
    """The most important condition of a machine."""

    REVOKED = "revoked"
    LEFT = "left"
    CLONED = "cloned"
    WAITING = "waiting"
    OFFLINE = "offline"
    CLOCK_OFF = "clock_off"
    VERSION_DIFFERS = "version_differs"
    DRAINING = "draining"
    CORDONED = "cordoned"
    ONLINE = "online"


@dataclass(frozen=True, slots=True)
class ConditionBadge:
    """Word, icon and tone for badges."""

    word: str | Promise
    icon: str
    tone: str


LOOKS: Mapping[Condition, ConditionBadge] = {
    Condition.REVOKED: ConditionBadge(gettext_lazy("Revoked"), "circle-off", "bad"),
    Condition.LEFT: ConditionBadge(gettext_lazy("Left"), "circle-off", "wait"),
    Condition.CLONED: ConditionBadge(gettext_lazy("Cloned"), "alert-triangle", "bad"),
    Condition.WAITING: ConditionBadge(gettext_lazy("Waiting for its first report"), "clock", "wait"),
    Condition.OFFLINE: ConditionBadge(gettext_lazy("Offline"), "plug-connected-x", "bad"),
    Condition.CLOCK_OFF: ConditionBadge(gettext_lazy("Wrong clock"), "clock", "bad"),
    Condition.VERSION_DIFFERS: ConditionBadge(gettext_lazy("Different version"), "alert-triangle", "wait"),
    Condition.DRAINING: ConditionBadge(gettext_lazy("Draining"), "lock", "wait"),
    Condition.CORDONED: ConditionBadge(gettext_lazy("Cordoned"), "lock", "wait"),
    Condition.ONLINE: ConditionBadge(gettext_lazy("Online"), "circle-check", "ok"),
}


BEFORE_OFFLINE = frozenset({Condition.REVOKED, Condition.LEFT, Condition.CLONED, Condition.WAITING})
"""Conditions that explain why a machine is silent."""


def conditions_of(machine: Any, now: datetime) -> list[Condition]:
    """Return all conditions of a machine from `selectors.machines_with_nodes`, most important first."""
    if machine.state == MachineState.REVOKED:
        return [Condition.REVOKED]
    if machine.state == MachineState.LEFT:
        return [Condition.LEFT]
    conditions = []
    if machine.cloned_at is not None and now - machine.cloned_at < CLONED_FOR:
        conditions.append(Condition.CLONED)
    if machine.seen_at is None or machine.seen_at < machine.joined_at:
        conditions.append(Condition.WAITING)
    elif not machine.online or _is_silent(machine, now):
        conditions.append(Condition.OFFLINE)
    if abs(machine.clock_off_s) > CLOCK_SHOWN_S:
        conditions.append(Condition.CLOCK_OFF)
    if not is_compatible(machine.version):
        conditions.append(Condition.VERSION_DIFFERS)
    if machine.cordoned:
        conditions.append(Condition.DRAINING if machine.placed else Condition.CORDONED)
    return conditions or [Condition.ONLINE]


def condition_of(machine: Any, now: datetime) -> Condition:
    """Return the most important condition of a machine from `selectors.machines_with_nodes`."""
    return conditions_of(machine, now)[0]


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node. `age` and `cause` say how long and why it is silent; empty if it reports."""

    condition: Condition
    age: str = ""
    cause: str = ""

    @property
    def look(self) -> ConditionBadge:
        return LOOKS[self.condition]

    @property
    def stale(self) -> bool:
        """Whether the values are the last known ones."""
        return bool(self.age)


def state_of_node(node: Node, machine: Any | None, now: datetime) -> NodeState:
    """Return the state of a node, with the age of the last report. Reads its pool.

    `machine` is its machine (`selectors.machines_by_node`), or None if it never joined.
    """
    contact = contact_of_node(node)
    condition = condition_of(machine, now) if machine is not None else Condition.ONLINE
    if condition not in BEFORE_OFFLINE and not contact.heard:
        condition = Condition.OFFLINE
    if condition is Condition.ONLINE and node.cordoned:
        condition = Condition.CORDONED
    if condition is not Condition.OFFLINE:
        return NodeState(condition)
    times = [contact.last, machine.heard_at if machine is not None else None]
    last = max((at for at in times if at is not None), default=None)
    return NodeState(condition, Contact(False, last).age_text(now), contact.cause)


def notes_of(machine: Any, now: datetime) -> list[str]:
    """Return notes about a machine's conditions, each with a next action."""
    notes = [_note(condition, machine) for condition in conditions_of(machine, now)]
    if machine.state == MachineState.ACTIVE and machine.certificate_expires_at - now < EXPIRES_SOON:
        notes.append(
            _("Certificate expires in %(days)d days. Check why it was not renewed.")
            % {"days": max((machine.certificate_expires_at - now).days, 0)}
        )
    return [note for note in notes if note]


def _is_silent(machine: Any, now: datetime) -> bool:
    return machine.heard_at is not None and now - machine.heard_at > SILENT_AFTER


def _note(condition: Condition, machine: Any) -> str:
    match condition:
        case Condition.CLONED:
            return _("Two machines use these keys. Revoke the machine, and join each with its own token.")
        case Condition.WAITING:
            return _("Joined. The node worker has not reported yet.")
        case Condition.OFFLINE:
            return _("No contact. Check the machine, its network and its service.")
        case Condition.CLOCK_OFF:
            return _("The clock is %(seconds)d s %(way)s. Synchronise it.") % {
                "seconds": abs(round(machine.clock_off_s)),
                "way": _("ahead") if machine.clock_off_s > 0 else _("behind"),
            }
        case Condition.VERSION_DIFFERS:
            return _("Berth %(theirs)s, but the portal has %(ours)s. Update the machine.") % {
                "theirs": machine.version or "?",
                "ours": VERSION,
            }
        case Condition.DRAINING:
            return _("No new work. Workspaces still there: %(count)d.") % {"count": machine.placed}
        case Condition.CORDONED:
            return _("No new work. No workspaces there.")
    return ""
