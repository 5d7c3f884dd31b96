"""Filters and zoom of the GPU map as query parameters: from all pools to a pool, a rack and a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.fleet.inventory import locations
from portal.fleet.inventory.models import Node, Pool

UNKNOWN = "-"
"""Value of `rack` for nodes without a location. Rack names begin with a letter or digit."""
BY = (
    ("", gettext_lazy("By pool")),
    ("model", gettext_lazy("By model")),
    ("state", gettext_lazy("By state")),
    ("rack", gettext_lazy("By rack")),
)
"""Supported groupings."""
_KEPT = ("model", "state", "by")
"""Filters that zoom links keep. A search ends when the user selects a place."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters and zoom of the map; empty fields match all. `rack` is a location as text, or `UNKNOWN`."""

    pool: str = ""
    model: str = ""
    state: str = ""
    q: str = ""
    by: str = ""
    rack: str = ""
    node: str = ""

    @property
    def narrowed(self) -> bool:
        """Whether anything except the grouping is set."""
        return any((self.pool, self.model, self.state, self.q, self.rack, self.node))


@dataclass(frozen=True, slots=True)
class Crumb:
    """A zoom level; `zoom` is its query string, empty for the current level."""

    name: str
    zoom: str = ""


def rack_key(node: Node) -> str:
    """Return the value of `rack` that selects the node."""
    return locations.location_text(node) or UNKNOWN


def rack_name(key: str | Node) -> str:
    """Return the display name of the rack with this key, or of a node."""
    key = rack_key(key) if isinstance(key, Node) else key
    return _("Unknown rack") if key == UNKNOWN else key


def zoom_query(filters: Filters, *, pool: str = "", rack: str = "", node: str = "") -> str:
    """Return the query string of this place, including the filters to keep."""
    kept = {name: getattr(filters, name) for name in _KEPT}
    chosen = {"pool": pool, "rack": rack, "node": node, **kept}
    return "?" + urlencode({name: value for name, value in chosen.items() if value}, safe="/")


def zoomed(nodes: Mapping[UUID, Node], filters: Filters) -> tuple[dict[UUID, Node], Filters, str]:
    """Return the nodes of the selected rack and node, the effective filters, and a note.

    Ignores an unknown rack or node, for example after another pool was selected, and explains this in the
    note.
    """
    note = ""
    rows = dict(nodes)
    for name, key_of, text in (
        ("rack", rack_key, _("Rack %(name)s is not in this selection. All racks are shown.")),
        ("node", _name_of, _("Node %(name)s is not in this selection. All nodes are shown.")),
    ):
        selected_key = getattr(filters, name)
        if not selected_key:
            continue
        chosen = {key: node for key, node in rows.items() if key_of(node) == selected_key}
        if chosen or not rows:
            rows = chosen
        else:
            filters = replace(filters, **{name: ""})
            note = text % {"name": selected_key}
    return rows, filters, note


def _name_of(node: Node) -> str:
    return node.name


def crumbs(filters: Filters, pools: Iterable[Pool]) -> tuple[Crumb, ...]:
    """Return the levels from all pools to the current place; empty without zoom."""
    if not (filters.rack or filters.node):
        return ()
    names = {pool.slug: pool.name for pool in pools}
    levels: list[tuple[str | Promise, str]] = [(_("All GPUs"), zoom_query(filters))]
    if filters.pool:
        levels.append((names.get(filters.pool, filters.pool), zoom_query(filters, pool=filters.pool)))
    if filters.rack:
        levels.append((rack_name(filters.rack), zoom_query(filters, pool=filters.pool, rack=filters.rack)))
    if filters.node:
        levels.append((filters.node, ""))
    return tuple(
        Crumb(str(name), zoom if number < len(levels) - 1 else "")
        for number, (name, zoom) in enumerate(levels)
    )
