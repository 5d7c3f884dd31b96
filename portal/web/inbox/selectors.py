"""Counts, sorts and reads the inbox items of all sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from django.db.models import Func, IntegerField, Value
from django.utils import timezone

from portal.people.accounts.models import User
from portal.web.inbox.duties import duties_of
from portal.web.inbox.items import Item, SortKey
from portal.web.inbox.sources import SOURCES, sources_of_kinds


def count(actor: User) -> int:
    """Return the number of items that wait for the actor, for the badge, the page and REST."""
    return sum(counts(actor).values())


def counts(actor: User) -> Counter[str]:
    """Return the number of items by kind, with one query plus those for the actor's roles."""
    return by_kind(counts_by_source(actor))


def by_kind(counted: Mapping[str, int]) -> Counter[str]:
    """Return the numbers by kind, from the result of `counts_by_source`."""
    numbers: Counter[str] = Counter()
    for source in SOURCES:
        if counted.get(source.name):
            numbers[source.kind] += counted[source.name]
    return numbers


def counts_by_source(actor: User) -> Counter[str]:
    """Return the number of items by the name of their source, with the queries of `counts`."""
    if not actor.is_active:
        return Counter()
    duties = duties_of(actor)
    first, *others = (
        source.counted(actor).order_by().values_list(Value(source.name), _RowCount())
        for source in SOURCES
        if source.concerns(duties)
    )
    return Counter(dict(first.union(*others, all=True)))


class _RowCount(Func):
    """`COUNT(*)` over a whole query, without the grouping that `Count` adds."""

    template = "COUNT(*)"
    output_field = IntegerField()


def keys(
    actor: User, kinds: Collection[str] = (), *, counted: Mapping[str, int] | None = None
) -> list[SortKey]:
    """Return the sorted keys of all items, or of these `kinds`. One query per source.

    With `counted`, the result of `counts_by_source`, sources without items are not queried.
    """
    now = timezone.now()
    sources = (source for source in sources_of_kinds(kinds) if counted is None or counted.get(source.name))
    return sorted(key for source in sources for key in source.keys(actor, now))


def items(actor: User, keys: Sequence[SortKey]) -> list[Item]:
    """Return the items of these keys in order, except those that were decided meanwhile."""
    items_by_key: dict[SortKey, Item] = {}
    for source in SOURCES:
        items_by_key |= source.items(actor, (key for key in keys if key.source == source.name))
    return [items_by_key[key] for key in keys if key in items_by_key]
