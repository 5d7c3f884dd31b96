"""Decides which items that nodes report have an owner. Such items are neither listed nor removed.

Nodes know the owners of processes and control groups, and check again before removal. For homes and folders,
the database decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from django.db.models.functions import Lower

from portal.people.accounts.models import Team, User
from portal.workspaces.models import HomeDeletion, Workspace
from portal.workspaces.orphans.models import OrphanKind

DELETING = ".deleting-"


class EntryKey(NamedTuple):
    """The key of an entry in a node's listing."""

    pool: UUID
    node: str
    kind: str
    name: str


def owned(items: Iterable[EntryKey]) -> set[EntryKey]:
    """Return the entries that have an owner, with a fixed number of queries."""
    items = set(items)
    by_name = {item for item in items if item.kind in {OrphanKind.FOLDER, OrphanKind.WORKSPACE}}
    alive = _live_names({item.name for item in by_name})
    homes = _homes({item.name for item in items if item.kind == OrphanKind.HOME})
    remains = {item for item in items if item.kind == OrphanKind.FOLDER and DELETING in item.name}
    return {
        *(item for item in by_name if item.name in alive),
        *(item for item in items if item.kind == OrphanKind.HOME and item.name in homes),
        *_being_deleted(remains),
    }


def _live_names(names: set[str]) -> set[str]:
    """Return those names that belong to workspaces that are not deleted."""
    ids = {key: name for name in names if (key := _id_of(name)) is not None}
    if not ids:
        return set()
    return {ids[pk] for pk in Workspace.objects.live().filter(pk__in=ids).values_list("pk", flat=True)}


def _homes(names: set[str]) -> set[str]:
    """Return homes with an existing user and team (members or not), and homes being deleted.

    The home of a deleted account has no owner, unless a workspace of the account is still live.
    """
    if not names:
        return set()
    pairs = {name: name.partition("/")[::2] for name in names}
    slugs = {team for team, _ in pairs.values()}
    usernames = {owner for _, owner in pairs.values()}
    teams = set(Team.objects.filter(slug__in=slugs).values_list("slug", flat=True))
    # Case-insensitive, because a home must be kept if two names could be the same.
    lowered = User.objects.filter(deleted_at=None).annotate(lowered=Lower("username"))
    people = set(
        lowered.filter(lowered__in={username.lower() for username in usernames}).values_list(
            "lowered", flat=True
        )
    )
    live = Workspace.objects.live().filter(owner__username__in=usernames)
    going = HomeDeletion.objects.filter(owner__username__in=usernames)
    archived_keys = {
        *live.order_by().values_list("team__slug", "owner__username").distinct(),
        *going.values_list("team__slug", "owner__username"),
    }
    return {
        name
        for name, (team, owner) in pairs.items()
        if (team in teams and owner.lower() in people) or (team, owner) in archived_keys
    }


def _being_deleted(remains: set[EntryKey]) -> set[EntryKey]:
    """Return the remains of homes whose deletion is still in progress."""
    if not remains:
        return set()
    rows = HomeDeletion.objects.filter(node__name__in={rest.node for rest in remains})
    under_way = {
        (pool, node, f"{team}/{DELETING}{user}")
        for pool, node, team, user in rows.values_list(
            "node__pool_id", "node__name", "team__slug", "owner__username"
        )
    }
    return {rest for rest in remains if (rest.pool, rest.node, rest.name) in under_way}


def _id_of(name: str) -> UUID | None:
    if not name.startswith("ws-"):
        return None
    try:
        return UUID(name[3:])
    except ValueError:
        return None
