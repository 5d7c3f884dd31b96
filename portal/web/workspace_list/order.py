"""The orders of the table. Each ends with the primary key and has no nulls, as cursors require."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import F, QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.reclaim import overview

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Sort:
    """An order: its name in the URL, and its field or annotation.

    With `descending_first`, the first click sorts in descending order.
    """

    name: str
    by: str
    descending_first: bool = False


SORTS = {
    sort.name: sort
    for sort in (
        Sort(NEWEST, "created_at", descending_first=True),
        Sort("name", "name"),
        Sort("owner", "owner__username"),
        Sort("team", "team__name"),
        Sort("state", "state"),
        Sort("flavor", "flavor__name"),
        Sort("pool", "by_pool"),
        Sort("idle", "by_idle", descending_first=True),
        Sort("left", "by_end"),
        Sort("started", "by_start", descending_first=True),
    )
}


@dataclass(frozen=True, slots=True)
class Order:
    """A sort with its direction, as chosen in the URL: `name`, or `-name` for the reverse."""

    sort: Sort
    descending: bool

    @property
    def key(self) -> str:
        """The order in the URL. A name alone is the direction of the first click."""
        return self.sort.name if self.descending == self.sort.descending_first else f"-{self.sort.name}"

    @property
    def reverse_key(self) -> str:
        return Order(self.sort, not self.descending).key

    @property
    def fields(self) -> tuple[str, str]:
        sign = "-" if self.descending else ""
        return f"{sign}{self.sort.by}", f"{sign}id"

    def annotated(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows with the annotation that the order needs."""
        match self.sort.by:
            case "by_pool":
                return rows.annotate(by_pool=Coalesce(F("pool__name"), Value("")))
            case "by_idle":
                return rows.annotate(by_idle=overview.idle_s(timezone.now()))
            case "by_end":
                return rows.annotate(by_end=overview.stops_at_or(LATEST))
            case "by_start":
                return rows.annotate(by_start=Coalesce(F("ready_at"), Value(EARLIEST)))
        return rows


def order_of(text: str) -> Order:
    """Return the order in a URL: newest first if the name is unknown."""
    sort = SORTS.get(text.removeprefix("-"))
    if sort is None:
        return Order(SORTS[NEWEST], descending=True)
    return Order(sort, sort.descending_first is not text.startswith("-"))
