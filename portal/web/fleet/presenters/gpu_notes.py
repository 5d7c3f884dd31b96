"""Sentences above the GPU map: counts, silent pools and nodes, notes about accelerators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.fleet.inventory import counting
from portal.fleet.inventory.contact import contact_of_node, contact_of_pool
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import Node, Pool
from provisioning.types import DeviceKind

SHOWN = 5
"""Maximum number of silent pools and nodes, and of notes, above the map."""


@dataclass(frozen=True, slots=True)
class SilentPlace:
    """A silent pool, or a silent node of a pool that reports. `age` and `cause` say how long and why."""

    name: str
    url: str
    age: str
    cause: str


def headline(devices: Iterable[tuple[str, DeviceState]]) -> str:
    """Return a summary such as “37 of 96 GPUs in use, 12 idle”; MIG instances are counted separately.

    `devices` are pairs of kind and state.
    """
    gpus: Counter[DeviceState] = Counter()
    instances: Counter[DeviceState] = Counter()
    for kind, state in devices:
        (instances if kind == DeviceKind.MIG else gpus)[state] += 1
    texts = []
    if total := sum(gpus.values()):
        noun = ngettext("%(busy)s of %(total)s GPU in use", "%(busy)s of %(total)s GPUs in use", total)
        texts.append(_shares(noun, gpus, total))
    if total := sum(instances.values()):
        noun = ngettext(
            "%(busy)s of %(total)s MIG instance in use", "%(busy)s of %(total)s MIG instances in use", total
        )
        texts.append(_shares(noun, instances, total))
    return "; ".join(texts)


def _shares(noun: str, counts: Counter[DeviceState], total: int) -> str:
    """Return the counts of one kind by state as text. The counts add up to the total."""
    groups = counting.summarize(counts)
    parts = [noun % {"busy": groups.in_use, "total": total}]
    for text, number in (
        (_("%(number)s idle"), groups.idle),
        (_("%(number)s free"), groups.free),
        (_("%(number)s being checked"), groups.checking),
        (_("%(number)s in maintenance"), groups.maintenance),
        (_("%(number)s out of service"), groups.out_of_service),
    ):
        if number:
            parts.append(text % {"number": number})
    return ", ".join(parts)


def silent_places(nodes: Iterable[Node], pools: Mapping[UUID, Pool], now: datetime) -> Iterable[SilentPlace]:
    """Return the silent pools of these nodes, then single silent nodes, up to `SHOWN`."""
    rows = list(nodes)
    of_pools = {key: contact_of_pool(pools[key]) for key in {node.pool_id for node in rows}}
    places = [
        SilentPlace(
            pools[key].name,
            reverse("fleet:pool", args=[pools[key].slug]),
            contact.age_text(now),
            contact.cause,
        )
        for key, contact in of_pools.items()
        if not contact.heard
    ]
    places += [
        SilentPlace(node.name, reverse("fleet:node", args=[node.pk]), contact.age_text(now), contact.cause)
        for node in rows
        if of_pools[node.pool_id].heard and not (contact := contact_of_node(node)).heard
    ]
    return places[:SHOWN]


def accelerator_notes(nodes: Iterable[Node]) -> Iterable[tuple[str, str]]:
    """Return distinct notes about the nodes' accelerators, such as a missing driver."""
    names_by_note: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        if node.accelerator_note and contact_of_node(node).heard:
            names_by_note[node.accelerator_note].append(node.name)
    for text, names in sorted(names_by_note.items(), key=lambda item: -len(item[1]))[:SHOWN]:
        more = _("%(node)s and %(count)s more") % {"node": names[0], "count": len(names) - 1}
        yield text, names[0] if len(names) == 1 else more
