"""Presenters for the pages of machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.fleet.machines.conditions import LOOKS, Condition, ConditionBadge, condition_of, notes_of
from portal.fleet.machines.models import MachineState


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine as a list row."""

    machine: Any
    condition: Condition
    look: ConditionBadge
    notes: list[str]

    @property
    def joined(self) -> bool:
        return bool(self.machine.state == MachineState.ACTIVE)

    @property
    def heard_at(self) -> datetime | None:
        """Time of the newest contact, or None."""
        times = [at for at in (self.machine.heard_at, self.machine.seen_at) if at is not None]
        return max(times, default=None)

    @property
    def offline(self) -> bool:
        return self.condition is Condition.OFFLINE


def rows(machines: Iterable[Any], now: datetime) -> list[MachineRow]:
    """Return rows for machines from `selectors.machines_with_nodes`. No queries."""
    return [_row(machine, now) for machine in machines]


def _row(machine: Any, now: datetime) -> MachineRow:
    condition = condition_of(machine, now)
    return MachineRow(machine, condition, LOOKS[condition], notes_of(machine, now))


def portal_address() -> str:
    """Return the URL of the nodes' door."""
    host = settings.BERTH_NODES_ADDRESS
    return f"https://{f'[{host}]' if ':' in host else host}:{settings.BERTH_NODES_PORT}"


def command_of(token: str) -> str:
    """Return the command to run on the joining machine."""
    return f"berth node join {portal_address()} --token {token}"


def revoke_question(machine: Any) -> dict[str, Any]:
    """Return the context of the confirmation to revoke a machine."""
    params = {"node": machine.name}
    loses = [
        _("keys, certificate and password of %(node)s, at once") % params,
        _("its connections; later messages are ignored"),
    ]
    if machine.placed:
        loses.append(
            ngettext(
                "access to %(count)d workspace placed there",
                "access to %(count)d workspaces placed there",
                machine.placed,
            )
            % {"count": machine.placed}
        )
    return {
        "title": _("Revoke %(node)s?") % params,
        "loses": loses,
        "stays": [
            _("home folders on the machine"),
            _("its entry in this list, until you remove it"),
            _("audit log entries"),
        ],
        "note": _("For the audit log, and shown on the page of the node."),
        "yes": _("Revoke %(node)s") % params,
    }
