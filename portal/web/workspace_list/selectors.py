"""Rows of the table: the workspaces that REST lists for the user, filtered by URL parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from portal.common import keyset
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Allocation
from portal.people.accounts.models import User
from portal.reclaim import overview
from portal.web.workspace_list.order import Order, order_of
from portal.workspaces import selectors as workspaces
from portal.workspaces.filters import MAX_SEARCH_LENGTH, WorkspaceFilter
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

ROWS_PER_PAGE = 50
MAX_COUNTED = 1000
"""Rows are counted up to this number, so that every page has the same cost."""
FILTERS = ("q", "state", "team", "owner", "flavor", "pool")
EXPORT_BATCH = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection in a URL: its filters and its order."""

    actor: User
    filters: Mapping[str, str]
    order: Order

    def rows(self) -> QuerySet[Workspace]:
        """Return the matching rows, unordered. Raises `InvalidInput` for an unknown state."""
        data: dict[str, Any] = dict(self.filters)
        if state := data.get("state"):
            if state not in State.values:
                raise InvalidInput(Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(State.values)}))
            data["state"] = [state]
        listed = workspaces.listed_for(self.actor, deleted="state" in data)
        matching: QuerySet[Workspace] = WorkspaceFilter(data, queryset=listed).qs
        return matching

    def page(self, cursor: str) -> keyset.KeysetPage:
        """Return the rows of a page: the first page for a cursor of another order."""
        fields = self.order.fields
        keys = self.order.annotated(self.rows()).values("id", self.order.sort.by)
        try:
            page = keyset.read(
                keys, fields, keyset.decode(cursor, fields) if cursor else keyset.Cursor(), ROWS_PER_PAGE
            )
        except keyset.InvalidCursor:
            page = keyset.read(keys, fields, keyset.Cursor(), ROWS_PER_PAGE)
        rows = {
            row.pk: row
            for row in with_columns(Workspace.objects.filter(pk__in=[key["id"] for key in page.rows]))
        }
        present = [rows[key["id"]] for key in page.rows if key["id"] in rows]
        return keyset.KeysetPage(present, page.next, page.previous)

    def first(self, count: int) -> list[UUID]:
        """Return the ids of the first rows, in order."""
        ordered = self.order.annotated(self.rows()).order_by(*self.order.fields)
        return list(ordered.values_list("pk", flat=True)[:count])

    def count(self) -> int:
        """Return the number of rows, at most one more than `MAX_COUNTED`."""
        return self.rows().order_by()[: MAX_COUNTED + 1].count()

    def all(self) -> Iterator[Workspace]:
        """Yield all rows in order, with their columns, in chunks."""
        ordered = self.order.annotated(with_columns(self.rows())).order_by(*self.order.fields)
        return ordered.iterator(chunk_size=EXPORT_BATCH)


def selection_of(actor: User, data: Mapping[str, str]) -> Selection:
    """Return the selection for the parameters of a URL."""
    texts = {name: strip_nul(data.get(name, "")).strip()[:MAX_SEARCH_LENGTH] for name in FILTERS}
    filters = {name: text for name, text in texts.items() if text}
    return Selection(actor, filters, order_of(data.get("sort", "")))


def with_columns(rows: QuerySet[Workspace]) -> QuerySet[Workspace]:
    """Return the rows with the table's columns: `idle_s`, `stops_at`, `held` allocations, related rows."""
    allocations = Allocation.objects.filter(released_at=None).select_related("node").order_by("node__name")
    return (
        rows.annotate(idle_s=overview.idle_s(timezone.now()), stops_at=overview.stops_at())
        .select_related("owner", "team", "flavor", "flavor__pool", "pool", "status")
        .prefetch_related(Prefetch("allocations", allocations, to_attr="held"))
    )
