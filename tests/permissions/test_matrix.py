"""Every URL for every role, against `table.py`; a URL or method outside the table fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.cookies import SimpleCookie
from itertools import chain, pairwise
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from portal.common.scopes import Scope
from portal.workspaces.lifecycle import State
from tests.permissions.table import ACTORS, ROWS, Row
from tests.suite.choice import THOROUGH
from tests.worlds import taken_back

pytestmark = pytest.mark.django_db
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def patterns(parts: list[URLPattern | URLResolver], before: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Every URL pattern with its whole route."""
    for part in parts:
        route = before + str(part.pattern)
        if isinstance(part, URLPattern):
            yield route, part
        else:
            yield from patterns(part.url_patterns, route)


def known_as(route: str) -> str:
    """The route as in the table, where the API's routes with a trailing slash are merged."""
    return route.rstrip("/") if route.startswith("api/v1/") else route


def methods_of(view: Any) -> Iterable[str]:
    """The methods of a REST view in lower case: actions of a view set, or methods of the class."""
    actions: dict[str, str] | None = getattr(view, "actions", None)
    if actions is not None:
        return actions
    return [method.lower() for method in METHODS if hasattr(getattr(view, "cls", None), method.lower())]


ALL = list(patterns(get_resolver().url_patterns))
LISTED = {(row.method, row.route) for row in ROWS}


BY_SESSION_ALONE = {"DELETE api/v1/me"}
"""What no token does, whatever its scopes."""

NO_SESSION = ("agent/", "nodes/", "scim/", "api/v1/token-exchange")
"""What a browser's session counts for nothing at."""
MAKES_TOKENS = {
    "POST api/v1/tokens",
    "POST api/v1/tokens/<uuid:token_id>/rotate",
    "POST api/v1/teams/<slug:slug>/service-accounts/<username:username>/tokens",
    "POST api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules",
}

ORDERS = (
    ("nobody", "charlie", "vic", "dan", "alice", "ada"),
    ("charlie", "una", "olga", "ada"),
    ("dan", "bob"),
)
"""People by what they may do, least first: a rule that is wrong moves a step of one of these."""


def at_the_steps(row: Row) -> set[str]:
    """The roles in `make test`: anonymous, an outsider, and both sides of each change in a row."""
    outcomes = dict(zip(ACTORS, row.outcomes, strict=True))
    pairs = chain.from_iterable(map(pairwise, ORDERS))
    steps = (pair for pair in pairs if outcomes[pair[0]] != outcomes[pair[1]])
    return {"nobody", "charlie"}.union(*steps)


def differences(row: Row, ask: Callable[[str], Any], *, token: bool = False) -> list[str]:
    wrong = []
    people = ACTORS if os.environ.get(THOROUGH) else at_the_steps(row)
    for username, expected in zip(ACTORS, row.outcomes, strict=True):
        if username not in people:
            continue
        if token and username == "una" and row.writes:
            expected = frozenset({403})
        if token and username != "nobody" and str(row) in BY_SESSION_ALONE:
            expected = frozenset({403})
        with taken_back():
            status = ask(username).status_code
        if status not in expected:
            wrong.append(f"{username}: {status}, not {' or '.join(map(str, sorted(expected)))}")
    return wrong


def test_every_url_is_in_the_table():
    missing = sorted({known_as(route) for route, _ in ALL} - {row.route for row in ROWS})
    assert not missing, f"say in tests/permissions/table.py who may use: {', '.join(missing)}"


def test_table_has_no_removed_urls():
    removed_routes = sorted({row.route for row in ROWS} - {known_as(route) for route, _ in ALL})
    assert not removed_routes


def test_table_has_no_duplicate_rows():
    assert len(LISTED) == len(ROWS)


def test_every_method_of_the_api_is_in_the_table():
    missing = [
        f"{method} {known_as(route)}"
        for route, pattern in ALL
        for method in METHODS
        if method.lower() in methods_of(pattern.callback) and (method, known_as(route)) not in LISTED
    ]
    assert not missing


@pytest.mark.slow("asks every address with every method")
def test_methods_outside_the_table_are_refused(stage):
    """Even for an operator. 403 counts as refused: no one has a scope for it."""
    found = []
    client = stage.browser("olga")
    for route in each_third(sorted({row.route for row in ROWS} - {"api/", "scim/"})):
        for method in METHODS:
            if (method, route) in LISTED:
                continue
            with taken_back():
                status = client.generic(method, stage.url(route)).status_code
            if status not in {401, 405}:
                found.append(f"{method} {route}: {status}")
    assert not found


def each_third(values: list[Any]) -> list[Any]:
    """In `make test`, every third of `values` from the first, where one rule decides for all."""
    return values if os.environ.get(THOROUGH) else values[::3]


def unnamed(answer: Any, row: Row, username: str) -> Any:
    """The response, after checking that the outsider cannot read the name of a hidden workspace."""
    endless = "stream" in row.route or row.route.endswith("events/")
    if username == "charlie" and row.method == "GET" and not endless:
        # Pictures of documents are no text; all else is.
        body = b"" if answer.get("Content-Type", "").startswith("image/") else answer.getvalue()
        assert b"own-work-of-bob" not in body, f"{row} names it to an outsider"
    return answer


def by_part(rows: Iterable[Row]) -> Any:
    """The rows of one part of the site per test, so that the world is created only once."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault("/".join(row.route.split("/")[: 3 if row.in_api else 1]) or ".", []).append(row)
    return pytest.mark.parametrize("rows", parts.values(), ids=parts.keys())


TOKENS_ONLY = {"api/v1/token-exchange/renew"}
"""Routes of REST that no session can use."""


@pytest.mark.slow("asks every page as several people")
@by_part(row for row in ROWS if not row.in_api)
def test_matrix_of_pages(stage, rows):
    in_a_browser(stage, rows)


@pytest.mark.thorough("`make test` asks the API with tokens, by the same policies")
@by_part(row for row in ROWS if row.in_api and row.route not in TOKENS_ONLY)
def test_matrix_of_the_api_with_sessions(stage, rows):
    in_a_browser(stage, rows)


def test_token_endpoints_refuse_sessions(stage):
    for row in ROWS:
        if row.route in TOKENS_ONLY:
            assert stage.ask(stage.browser("ada"), row).status_code == 401, row


def in_a_browser(stage, rows):
    def ask(row, username):
        return unnamed(stage.ask(stage.browser(username), row), row, username)

    wrong = [f"{row}: {line}" for row in rows for line in differences(row, partial(ask, row))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow("asks every address as several people")
@by_part(row for row in ROWS if row.in_api)
def test_matrix_of_the_api_with_tokens(stage, rows):
    def ask(row, username):
        return unnamed(stage.ask(stage.program(username), row, slash=True), row, username)

    wrong = [f"{row}: {line}" for row in rows for line in differences(row, partial(ask, row), token=True)]
    assert not wrong, "\n".join(wrong)


def _shut_out(row, username):
    return 10 if min(row.outcomes[ACTORS.index(username)]) in {401, 403, 404} else 0


@by_part(row for row in ROWS if ":" in row.scope)
def test_token_needs_the_scope(stage, rows):
    with_the_scope = each_third(rows)
    for row in rows:
        # The first allowed role; if all get 409, the first that gets that far.
        best = min(
            reversed(ACTORS),
            key=lambda username: min(row.outcomes[ACTORS.index(username)]) // 100 + _shut_out(row, username),
        )
        with taken_back():
            others = [scope for scope in Scope.values if scope not in {row.scope, Scope.ALL}]
            stage.limit_token(best, *others)
            assert stage.ask(stage.program(best), row).status_code == 403, row
        if row not in with_the_scope:
            continue
        with taken_back():
            stage.limit_token(best, row.scope)
            answered = stage.ask(stage.program(best), row)
            # A token cannot make one that may do more than itself.
            expected = {403} if str(row) in MAKES_TOKENS else row.outcomes[ACTORS.index(best)]
            assert answered.status_code in expected, row


SIGNED = {"sign-in/oidc/<slug:idp>/signed-out/", "sign-in/saml/<slug:idp>/acs/"}
"""What is sent there proves itself by its signature; no page of ours sends it."""


@by_part(
    row
    for row in ROWS
    if row.method != "GET" and not row.route.startswith(NO_SESSION) and row.route not in SIGNED
)
def test_session_writes_need_a_csrf_token(stage, rows):
    for row in each_third(rows):
        client = Client(enforce_csrf_checks=True)
        client.cookies = SimpleCookie(stage.signed_in["olga"])
        assert stage.ask(client, row).status_code == 403, row
    stage.workspace.refresh_from_db()
    assert stage.workspace.state == State.RUNNING


@pytest.mark.parametrize("username", [username for username in ACTORS if username != "nobody"])
def test_deactivated_account_is_refused(stage, username):
    user = stage.people[username]
    browser, program = stage.browser(username), stage.program(username)
    user.is_active = False
    user.save()
    assert browser.get("/").status_code == 302
    assert browser.get("/api/v1/me").status_code == 401
    assert program.get("/api/v1/me").status_code == 401


def test_lists_show_only_visible_rows(stage):
    seen = {
        username: [
            item["name"] for item in stage.program(username).get("/api/v1/workspaces").json()["results"]
        ]
        for username in ACTORS[1:]
    }
    assert seen == {
        "charlie": [],
        "vic": ["own-work-of-bob"],
        "dan": [],
        "bob": ["own-work-of-bob"],
        "alice": ["own-work-of-bob"],
        "una": ["own-work-of-bob"],
        "olga": ["own-work-of-bob"],
        "ada": ["own-work-of-bob"],
    }
    teams = {
        username: sorted(
            item["slug"] for item in stage.program(username).get("/api/v1/teams").json()["results"]
        )
        for username in ACTORS[1:]
    }
    assert teams == {
        "charlie": ["robots"],
        "vic": ["vision"],
        "dan": ["vision"],
        "bob": ["vision"],
        "alice": ["vision"],
        "una": ["moving", "robots", "vision"],
        "olga": ["moving", "robots", "vision"],
        "ada": ["moving", "robots", "vision"],
    }


def test_another_team_is_refused_like_a_missing_one(stage):
    client = stage.program("charlie")
    answers = [
        client.post(
            "/api/v1/workspaces",
            {"template": "jupyterlab", "flavor": "cpu-small", "team": team},
            content_type="application/json",
        )
        .content.decode()
        .replace(team, "TEAM")
        for team in ("vision", "nobody-has-this")
    ]
    for answer in answers:
        assert "Vision" not in answer
    bodies = [json.loads(answer) for answer in answers]
    for body in bodies:
        body.pop("request_id", None)
    assert bodies[0] == bodies[1]


PUBLIC = {
    # Sign-in pages and the theme.
    "sign-in/",
    "sign-in/second-factor/",
    "sign-in/passkey/",
    "sign-out/",
    "sign-in/forgotten/",
    "theme/",
    # Redirects to a provider and back.
    "sign-in/by/<slug:idp>/",
    "sign-in/oidc/<slug:idp>/callback/",
    "sign-in/oidc/<slug:idp>/signed-out/",
    "sign-in/oidc/<slug:idp>/left/",
    "sign-in/saml/<slug:idp>/acs/",
    "sign-in/saml/<slug:idp>/finish/",
    "sign-in/saml/<slug:idp>/metadata/",
    # Signed links.
    "welcome/<uuid:user_id>/<str:link>/",
    # Health checks have no account; metrics have their own token.
    "healthz",
    "healthz/live",
    # Requested by the front door; 401 if anonymous.
    "gateway/large-body",
    "metrics",
    "metrics/gpus",
    # Streams answer 401, which an EventSource understands; a redirect would look like an empty stream.
    "events/",
    "workspaces/<uuid:workspace_id>/events/",
}
"""Pages that answer without a session. REST and agents prove themselves by tokens of their own."""


def test_pages_need_a_sign_in_unless_listed_here():
    public = {
        route
        for route, pattern in ALL
        if not getattr(pattern.callback, "login_required", True)
        and not route.startswith(("api/", "agent/", "nodes/", "scim/"))
    }
    assert public == PUBLIC
