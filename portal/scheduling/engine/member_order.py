"""Orders requests within a team whose members take turns by their use.

A tier contains all requests of a team and priority that are neither nominated nor overdue. The tier keeps its
positions in the queue, which follow from reserved starts and due times, so that other teams keep theirs.
Members fill these positions: the first position goes to the earliest request of the member with the least
use. A position disappears when the request that defined it starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import groupby

from portal.scheduling.engine.ranks import Key, Rank, Shape, rank_of
from portal.scheduling.engine.usage import Usage

Group = tuple[Shape, str | None, int]
"""The requests of one list: shape, member and negative priority.

Without turns of members, the member is None and the priority 0.
"""
Groups = Sequence[tuple[Group, Sequence[Key]]]


class ShapeCursor:
    """Requests of one shape, by due time."""

    __slots__ = ("_index", "_keys", "_shape", "_skipped", "_usage")

    def __init__(self, shape: Shape, keys: Sequence[Key], usage: Usage, skipped: Set[Shape]) -> None:
        self._shape, self._keys = shape, keys
        self._usage, self._skipped = usage, skipped
        self._index = 0

    def head(self) -> tuple[Rank, str] | None:
        """Return the rank and id of the next request, or None at the end."""
        if self._index == len(self._keys) or self._shape in self._skipped:
            return None
        rank = rank_of(self._keys[self._index], self._usage.delay_ms(self._shape[0]))
        return rank, rank[4]

    def advance(self) -> None:
        self._index += 1


class TierCursor:
    """Requests of one tier, with members taking turns. The members' use may grow meanwhile.

    Skipped shapes give up their places too. If no places are left, a request keeps its own.
    """

    __slots__ = ("_groups", "_places", "_requests", "_seen", "_skipped", "_taken", "_team", "_usage")

    def __init__(self, groups: Groups, usage: Usage, skipped: Set[Shape]) -> None:
        self._groups, self._usage, self._skipped = groups, usage, skipped
        self._team = groups[0][0][0][0]
        self._seen, self._taken = [0] * len(groups), [0] * len(groups)
        self._places = [(keys[0], number) for number, (_, keys) in enumerate(groups)]
        self._requests = [
            (_share(usage, group), keys[0], number) for number, (group, keys) in enumerate(groups)
        ]
        heapify(self._places)
        heapify(self._requests)

    def head(self) -> tuple[Rank, str] | None:
        """Return the rank and id of the next request, or None at the end."""
        while self._requests:
            share, key, number = self._requests[0]
            group = self._groups[number][0]
            if group[0] in self._skipped:
                heappop(self._requests)
            elif (now := _share(self._usage, group)) != share:
                heapreplace(self._requests, (now, key, number))
            else:
                break
        else:
            return None
        while self._places and self._groups[self._places[0][1]][0][0] in self._skipped:
            heappop(self._places)
        place = self._places[0][0] if self._places else key
        return rank_of(place, self._usage.delay_ms(self._team)), key[4]

    def advance(self) -> None:
        """Move past the request that `head` has returned."""
        share, _, number = self._requests[0]
        keys = self._groups[number][1]
        self._seen[number] += 1
        if self._seen[number] < len(keys):
            heapreplace(self._requests, (share, keys[self._seen[number]], number))
        else:
            heappop(self._requests)
        if not self._places:
            return
        number = self._places[0][1]
        keys = self._groups[number][1]
        self._taken[number] += 1
        if self._taken[number] < len(keys):
            heapreplace(self._places, (keys[self._taken[number]], number))
        else:
            heappop(self._places)


def order_by_turns(groups: Groups, usage: Usage) -> Iterator[tuple[Key, str]]:
    """Yield the places of a tier in order, each with the id of the request that gets it at current use."""
    places = sorted(key for _, keys in groups for key in keys)
    requests = sorted((_share(usage, group), key) for group, keys in groups for key in keys)
    for place, (_, request) in zip(places, requests, strict=True):
        yield place, request[4]


def key_by_turn(group: Group, key: Key, groups: Groups, usage: Usage) -> Key:
    """Return the place of a request in its tier when members with less current use go first."""
    own = _share(usage, group)
    before = 0
    for other, keys in groups:
        share = _share(usage, other)
        if share < own:
            before += len(keys)
        elif share == own:
            before += bisect_left(keys, key)
    return sorted(key for _, keys in groups for key in keys)[before]


@dataclass(frozen=True, slots=True)
class MemberTurn:
    """A member whose requests swap places with another member's within the tier.

    - `after`: the earliest request of a member with more use, and that member.
    - `before`: the latest request of a member with less use, and that member.
    """

    after: tuple[Key, str] | None
    before: tuple[Key, str] | None

    def overtaken(self, key: Key) -> str | None:
        """Return the member whose older request now comes after this one, or None."""
        return self.after[1] if self.after is not None and self.after[0] < key else None

    def overtaken_by(self, key: Key) -> str | None:
        """Return the member whose younger request now comes before this one, or None."""
        return self.before[1] if self.before is not None and self.before[0] > key else None


def member_turns(groups: Groups, usage: Usage) -> dict[str, MemberTurn]:
    """Return the turn of each member of a tier at current use."""
    first: dict[str, Key] = {}
    last: dict[str, Key] = {}
    shares: dict[str, int] = {}
    for group, keys in groups:
        member = group[1] or ""
        shares[member] = _share(usage, group)
        first[member] = min(first.get(member, keys[0]), keys[0])
        last[member] = max(last.get(member, keys[-1]), keys[-1])
    order = sorted(shares, key=lambda member: (shares[member], member))
    after = _best_key_before(order[::-1], shares, first, min)
    before = _best_key_before(order, shares, last, max)
    return {member: MemberTurn(after[member], before[member]) for member in order}


def _best_key_before(
    order: Iterable[str],
    shares: Mapping[str, int],
    keys: Mapping[str, Key],
    best: Callable[[tuple[Key, str], tuple[Key, str]], tuple[Key, str]],
) -> dict[str, tuple[Key, str] | None]:
    """For each member, return the best key of the members before it, except those with equal use."""
    result: dict[str, tuple[Key, str] | None] = {}
    best_before: tuple[Key, str] | None = None
    for _, equals in groupby(order, key=shares.__getitem__):
        members = list(equals)
        result.update(dict.fromkeys(members, best_before))
        for member in members:
            candidate = (keys[member], member)
            best_before = candidate if best_before is None else best(best_before, candidate)
    return result


def _share(usage: Usage, group: Group) -> int:
    return usage.member_share(group[0][0], group[1] or "")
