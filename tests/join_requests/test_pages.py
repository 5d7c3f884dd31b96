"""Pages and REST of joining: visibility and actions."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.people.accounts.models import Team
from portal.people.join_requests import services
from portal.people.join_requests.models import JoinRequest
from tests import sites

pytestmark = pytest.mark.django_db
WORLD = sites.people
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def body(response) -> str:
    return response.content.decode()


def test_home_without_team_explains_and_lists_teams_with_owners(team, fay, catalog, as_user):
    page = body(as_user(fay).get("/"))
    assert "You are not in a team yet" in page and "Vision" in page and "alice" in page
    assert "/join/teams/vision/" in page
    assert "bob" not in page.split("<main")[1]


def test_home_lists_no_teams_if_listing_is_disabled(team, fay, catalog, as_user, settings):
    settings.BERTH_LIST_TEAMS = False
    page = body(as_user(fay).get("/"))
    assert "You are not in a team yet" in page and "Vision" not in page and "alice" not in page
    for path in ("/join/", "/teams/"):
        assert "Vision" not in body(as_user(fay).get(path))
    assert as_user(fay).get("/join/teams/vision/").status_code == 404
    assert as_user(fay).get("/join/teams/nowhere/").status_code == 404


def test_home_page_of_members_and_operators_is_unchanged(team, bob, olga, catalog, as_user):
    for user in (bob, olga):
        assert "You are not in a team yet" not in body(as_user(user).get("/"))


def test_request_approval_and_next_step(team, fay, alice, catalog, as_user):
    browser = as_user(fay)
    assert browser.get("/join/teams/vision/").status_code == 200
    answer = browser.post("/join/teams/vision/", {"message": MARKUP})
    asked = JoinRequest.objects.get()
    assert answer.url == services.url_of(asked)
    for user in (fay, alice):
        page = body(as_user(user).get(answer.url))
        assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in body(as_user(alice).get("/notifications/"))
    assert "Requested" in body(browser.get("/"))
    as_user(alice).post(f"{answer.url}decide/", {"do": "approve", "role": "member"})
    part = body(browser.get("/", headers={"HX-Request": "true", "HX-Target": "no-team"}))
    assert "You are now a member of Vision." in part and "/workspaces/new/?team=vision" in part
    assert "New workspace" in body(browser.get(answer.url))


def test_denial_needs_a_note_and_stays_on_the_page(team, fay, alice, as_user):
    asked, _ = services.request_to_join(actor=fay, slug="vision")
    url = services.url_of(asked)
    page = as_user(alice).post(f"{url}decide/", {"do": "deny"}, follow=True)
    assert "A denial needs a note" in body(page)
    as_user(alice).post(f"{url}decide/", {"do": "deny", "note": MARKUP})
    page = body(as_user(fay).get(url))
    assert "Denied" in page and "<script>alert" not in page


def test_decision_redirects_only_within_the_portal(team, fay, alice, as_user):
    asked, _ = services.request_to_join(actor=fay, slug="vision")
    given = {"do": "approve", "next": "https://elsewhere.example/"}
    assert as_user(alice).post(f"{services.url_of(asked)}decide/", given).url == services.url_of(asked)


def test_repeated_rest_request_returns_the_open_one(team, fay, with_token):
    program = with_token(fay)
    first = program.post(
        "/api/v1/teams/vision/join-requests", {"message": "Hi"}, content_type="application/json"
    )
    again = program.post("/api/v1/teams/vision/join-requests", {}, content_type="application/json")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert program.get(first["Location"]).json()["message"] == "Hi"
    [row] = program.get("/api/v1/joinable-teams").json()["results"]
    assert (row["slug"], row["owners"], row["request"]) == ("vision", ["alice"], first.json()["id"])


def test_rest_does_not_reveal_whether_a_team_exists(team, fay, with_token, settings):
    settings.BERTH_LIST_TEAMS = False
    program = with_token(fay)
    said = []
    for slug in ("vision", "nowhere"):
        answer = program.post(f"/api/v1/teams/{slug}/join-requests", {}, content_type="application/json")
        document = answer.json()
        for moving in ("request_id", "instance"):
            document.pop(moving, None)
        said.append((answer.status_code, str(document).replace(slug, "…")))
    assert said[0] == said[1] and said[0][0] == 404
    assert program.get("/api/v1/joinable-teams").json()["results"] == []


def test_creating_a_team_does_not_reveal_accounts(team, bob, olga, with_token):
    program = with_token(bob)
    said = []
    for owner in ("alice", "nobody-at-all"):
        given = {"slug": "mine", "owner": owner}
        answer = program.post("/api/v1/teams", given, content_type="application/json")
        said.append((answer.status_code, answer.json()["code"], answer.json()["detail"]))
    assert said[0] == said[1] and said[0][0] == 403
    answer = with_token(olga).post(
        "/api/v1/teams", {"slug": "mine", "owner": "nobody-at-all"}, content_type="application/json"
    )
    assert answer.status_code == 400
    assert not Team.objects.filter(slug="mine").exists()


def test_request_page_takes_few_queries(team, fay, alice, as_user):
    asked, _ = services.request_to_join(actor=fay, slug="vision")
    browser = as_user(alice)
    browser.get(services.url_of(asked))
    with CaptureQueriesContext(connection) as queries:
        browser.get(services.url_of(asked))
    assert len(queries) < 16, [query["sql"] for query in queries]
