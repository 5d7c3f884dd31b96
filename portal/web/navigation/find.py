"""Searches everything that a user may open: pages, workspaces, teams, people, machines and documents.

Results are limited to objects that the user could also open from a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db.models import Q
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from portal.common.templatetags.berth import look_of
from portal.common.texts import strip_nul
from portal.fleet.inventory import selectors as inventory
from portal.people.accounts import selectors as accounts
from portal.people.accounts.models import User
from portal.web.documents import search as documents
from portal.web.navigation import menu
from portal.workspaces import selectors as workspaces
from portal.workspaces.lifecycle import State

MAX_CHARACTERS = 100
MAX_FOUND = 5
"""Maximum number of results of each kind."""
ACTS = {
    "open": "workspaces:detail",
    "stop": "workspaces:stop",
    "delete": "workspaces:delete",
    "logs": "workspaces:logs",
}
"""Verbs that may precede the name of a workspace, with the page of each."""


@dataclass(frozen=True, slots=True)
class Result:
    """A search result. `sub` distinguishes it from other results with the same name."""

    title: str | Promise
    url: str
    icon: str
    sub: str = ""


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Search results of one kind."""

    title: str
    results: list[Result]


def find(user: User, text: str) -> list[ResultGroup]:
    """Return the matches for a text, by kind; for an empty text, the pages of the menu."""
    query = strip_nul(text).strip()[:MAX_CHARACTERS]
    if not query:
        return [ResultGroup(_("Pages"), _pages(user, ""))]
    kinds: Iterable[tuple[str, Callable[[User, str], list[Result]]]] = (
        (_("Pages"), _pages),
        (_("Workspaces"), _workspaces),
        (_("Teams"), _teams),
        (_("People"), _people),
        (_("Machines and pools"), _machines),
        (_("Documentation"), _documents),
    )
    groups = (ResultGroup(title, search(user, query)) for title, search in kinds)
    return [group for group in groups if group.results]


def _pages(user: User, query: str) -> list[Result]:
    """Return pages whose label begins with the query, then those with all of its words."""
    words = query.lower().split()
    results: list[tuple[bool, Result]] = []
    for page in menu.pages_for(user):
        label = str(page.label).lower()
        terms = f"{label} {page.keywords}".split()
        if all(any(term.startswith(word) for term in terms) for word in words):
            results.append(
                (not label.startswith(query.lower()), Result(page.label, reverse(page.url), page.icon))
            )
    results.sort(key=lambda ranked: ranked[0])
    return [result for _late, result in results][: MAX_FOUND if words else None]


def _workspaces(user: User, query: str) -> list[Result]:
    """Return workspaces by name, own ones first. “stop NAME” finds the page that stops a workspace."""
    verb, _space, rest = query.partition(" ")
    act = ACTS.get(verb.lower()) if rest.strip() else None
    name = rest.strip() if act else query
    rows = workspaces.rows_for(user).exclude(state=State.TERMINATED).filter(name__icontains=name)
    own = list(rows.filter(owner=user).select_related("team", "owner").order_by("name", "pk")[:MAX_FOUND])
    others = rows.exclude(owner=user).select_related("team", "owner").order_by("name", "pk")
    results = [*own, *others[: MAX_FOUND - len(own)]]
    return [
        Result(
            f"{verb.capitalize()} {row.name}" if act else row.name,
            reverse(act or "workspaces:detail", args=[row.pk]),
            "notebook",
            " · ".join((look_of(row.state).word, row.team.name, row.owner.username)),
        )
        for row in results
    ]


def _teams(user: User, query: str) -> list[Result]:
    rows = accounts.teams_for(user).filter(Q(slug__icontains=query) | Q(name__icontains=query))
    return [
        Result(team.name, reverse("home:team", args=[team.slug]), "users", team.slug)
        for team in rows.order_by("name")[:MAX_FOUND]
    ]


def _people(user: User, query: str) -> list[Result]:
    if not user.sees_people:
        return []
    rows = accounts.search_users(accounts.users_for(user), query).order_by("username")[:MAX_FOUND]
    return [
        Result(row.username, reverse("accounts:user", args=[row.username]), "user-circle", row.email)
        for row in rows
    ]


def _machines(user: User, query: str) -> list[Result]:
    if not menu.works_with_gpus(user):
        return []
    nodes = inventory.nodes().filter(name__icontains=query).select_related("pool").order_by("name")
    machines = [
        Result(node.name, reverse("fleet:node", args=[node.pk]), "server-2", node.pool.name)
        for node in nodes[:MAX_FOUND]
    ]
    pools = inventory.pools().filter(Q(slug__icontains=query) | Q(name__icontains=query)).order_by("name")
    return machines + [
        Result(pool.name, reverse("fleet:pool", args=[pool.slug]), "server-2", pool.slug)
        for pool in pools[:MAX_FOUND]
    ]


def _documents(_user: User, query: str) -> list[Result]:
    return [
        Result(match.title, match.url, "file-text", " › ".join(match.path))
        for match in documents.index().search(query, MAX_FOUND)
    ]
