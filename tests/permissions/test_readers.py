"""Viewers and auditors only read: pages offer them no changes, and their requests change nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from portal.common.events.models import Event
from tests.permissions.stage import Stage
from tests.permissions.table import ROWS, Row
from tests.permissions.test_matrix import each_third
from tests.suite.choice import quick_of
from tests.worlds import taken_back

pytestmark = pytest.mark.django_db
READERS = ("vic", "una")
OWN = re.compile(
    r"^/?(.*/trust-rules/check/$|sign-in|sign-out|theme|account|announcements/[^/]+/dismiss/|notifications|welcome|secrets/|api/v1/(me/secrets|me/dotfiles|tokens|notifications|notice-channels))"
)
"""What everybody does with his own account, notices, channels, tokens; what answers a question by a form."""
PROPOSALS = re.compile(r"^/(workspaces/new/|quotas/ask/)")


class Offers(HTMLParser):
    """The targets of a page's forms and links."""

    def __init__(self, body: str, path: str) -> None:
        super().__init__()
        self.path = path
        self.posts: list[str] = []
        self.links: list[str] = []
        self.feed(body)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form" and (given.get("method") or "").lower() == "post":
            self.posts.append(given.get("action") or self.path)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))


def pages() -> list[Row]:
    return [
        row
        for row in ROWS
        if row.method == "GET" and not row.in_api and "events" not in row.route and row.route != "healthz"
    ]


@pytest.mark.parametrize("username", quick_of(READERS, READERS[:1], "`make test` asks as one reader"))
def test_pages_offer_readers_no_forbidden_actions(stage: Stage, username: str) -> None:
    client = stage.browser(username)
    seen, wrong = 0, []
    for row in each_third(pages()):
        answer = stage.ask(client, row)
        if answer.status_code != 200 or "text/html" not in answer.headers["Content-Type"]:
            continue
        seen += 1
        offers = Offers(answer.content.decode(), answer.request["PATH_INFO"])
        wrong += [f"{row} has a form for {path}" for path in offers.posts if not OWN.match(path)]
        wrong += [f"{row} links to {path}" for path in offers.links if PROPOSALS.match(path)]
    assert seen > 10
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow("sends every form")
@pytest.mark.parametrize("username", quick_of(READERS, READERS[:1], "`make test` asks as one reader"))
def test_requests_of_readers_change_nothing(stage: Stage, username: str) -> None:
    """Every write leaves an audit entry in its transaction, so there must be none."""
    wrong = []
    for row in ROWS:
        if row.method == "GET" or OWN.match(row.route) or row.route.startswith(("agent/", "nodes/")):
            continue
        with taken_back():
            last = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            stage.ask(stage.browser(username), row)
            wrong += [f"{row}: {event.kind}" for event in Event.objects.filter(pk__gt=last)]
    assert not wrong, "\n".join(wrong)
