"""Presenters of the documentation pages."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.safestring import SafeString

from portal.web.documents import navigation
from portal.web.documents.library import DECISIONS, Document, Heading, documents
from portal.web.documents.rendering import address_of, page_of


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a document."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class GroupLinks:
    title: str | Promise
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class KindLinks:
    title: str | Promise
    summary: str | Promise
    groups: tuple[GroupLinks, ...]


@dataclass(frozen=True, slots=True)
class PageView:
    """A document with its position, and the documents before and after it."""

    title: str
    body: SafeString
    contents: tuple[Heading, ...]
    kind: str | Promise
    groups: tuple[GroupLinks, ...]
    is_decision: bool
    url: str
    before: Link | None
    after: Link | None


def kinds() -> list[KindLinks]:
    """Return the four kinds with all their documents."""
    return [KindLinks(kind.title, kind.summary, _groups(kind)) for kind in navigation.KINDS]


def page(document: Document) -> PageView:
    """Return the data of a document's page."""
    rendered = page_of(document)
    kind, _ = navigation.place_of(document.name)
    before, after = navigation.neighbours(document.name)
    is_decision = document.name.startswith(DECISIONS)
    return PageView(
        rendered.title,
        rendered.body,
        rendered.contents,
        kind.title,
        () if is_decision else _groups(kind),
        is_decision,
        address_of(document.name),
        _link(before) if before else None,
        _link(after) if after else None,
    )


def _groups(kind: navigation.Kind) -> tuple[GroupLinks, ...]:
    present = documents()
    return tuple(
        GroupLinks(group.title, tuple(_link(name) for name in group.names if name in present))
        for group in kind.groups
    )


def _link(name: str) -> Link:
    return Link(documents()[name].title, address_of(name))
