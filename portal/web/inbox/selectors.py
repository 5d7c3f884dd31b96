"""Inbox items of all sources: counted, sorted and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import Count, IntegerField, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from portal.people.accounts.models import User
from portal.web.inbox.items import Item, SortKey
from portal.web.inbox.sources import SOURCES, sources_of_kinds


def count(actor: User) -> int:
    """Return the number of items that wait for the actor, for the badge, the page and REST."""
    return sum(counts(actor).values())


def counts(actor: User) -> Counter[str]:
    """Return the number of items by kind, with one query plus those for the actor's roles."""
    if not actor.is_active:
        return Counter()
    rows = [(source.kind, queryset) for source in SOURCES if (queryset := source.counted(actor)) is not None]
    numbers = User.objects.filter(pk=actor.pk).values_list(*(_number(queryset) for _kind, queryset in rows))
    counted: Counter[str] = Counter()
    for (kind, _queryset), number in zip(rows, numbers.first() or (), strict=False):
        counted[kind] += number
    return counted


def _number(rows: QuerySet[Any]) -> Coalesce:
    """Return the number of rows as a column."""
    count_query = rows.order_by().values(counted=Value(1)).annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(count_query, output_field=IntegerField()), 0)


def keys(actor: User, kinds: Collection[str] = ()) -> list[SortKey]:
    """Return the sorted keys of all items, or of these `kinds`. One query per source."""
    now = timezone.now()
    return sorted(key for source in sources_of_kinds(kinds) for key in source.keys(actor, now))


def items(actor: User, wanted: Sequence[SortKey]) -> list[Item]:
    """Return the items of these keys in order, without those decided meanwhile."""
    items_by_key: dict[SortKey, Item] = {}
    for source in SOURCES:
        items_by_key |= source.items(actor, (key for key in wanted if key.source == source.name))
    return [items_by_key[key] for key in wanted if key in items_by_key]
