"""Requests with a token skip most middleware and get the same responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import get_resolver

from portal.common import token_requests
from portal.common.api import ApiView
from portal.common.bearer import bearer_token
from portal.people.accounts.authentication import TokenAuthentication
from portal.people.accounts.models import ApiToken
from portal.workspaces.lifecycle import State
from tests.factories import WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db
SHORT = "portal.common.token_requests.TokenRequestMiddleware"
# Headers that differ between responses.
MOVING = {"X-Request-Id"}


@pytest.fixture
def ways(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """The same request by the short path and through all middleware, with separate clients."""

    def ask(
        method: str, path: str, *, body: str = "", cookies: Any = None, **headers: str
    ) -> tuple[Any, Any]:
        answers = []
        taken: list[str] = []
        match = token_requests._match
        monkeypatch.setattr(token_requests, "_match", lambda *given: taken.append("") or match(*given))
        full = list(settings.MIDDLEWARE)
        for middleware in (full, [name for name in full if name != SHORT]):
            settings.MIDDLEWARE = middleware
            client = Client(raise_request_exception=False)
            answers.append(
                client.generic(method, path, body, content_type="application/json", headers=headers)
            )
        settings.MIDDLEWARE = full
        assert len(taken) == 1
        return answers[0], answers[1]

    return ask


def seen(answer: Any) -> tuple[int, dict[str, str], Any]:
    headers = {name: value for name, value in answer.items() if name not in MOVING}
    policy = headers.pop("Content-Security-Policy", "")
    body = answer.json() if answer.content and "json" in answer["Content-Type"] else answer.content
    if isinstance(body, dict):
        body.pop("request_id", None)
        # The duration of the current stage.
        for row in (*body.get("results", ()), body):
            for stage in row.get("stages", ()):
                stage["seconds"] = None
        headers.pop("Content-Length", None)
    # Directives may have any order.
    return answer.status_code, {**headers, "policy": sorted(policy.split("; "))}, body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v1/me", "", 200),
        ("GET", "/api/v1/me/", "", 200),
        ("HEAD", "/api/v1/me", "", 200),
        ("OPTIONS", "/api/v1/me", "", 200),
        ("PUT", "/api/v1/me", "", 405),
        ("GET", "/api/v1/workspaces?page_size=2", "", 200),
        ("GET", "/api/v1/workspaces?page_size=nonsense", "", 400),
        ("GET", "/api/v1/workspaces?nonsense=1", "", 400),
        ("GET", "/api/v1/workspaces?format=xml", "", 400),
        ("GET", "/api/v1/workspaces/{id}", "", 200),
        ("GET", "/api/v1/workspaces/00000000-0000-0000-0000-000000000000", "", 404),
        ("GET", "/api/v1/nonsense", "", 404),
        ("GET", "/api/v1/schema", "", 200),
        ("POST", "/api/v1/workspaces", "{", 400),
        ("POST", "/api/v1/workspaces", '{"template": "x"}', 400),
        ("POST", "/api/v1/token-exchange", "", 400),
    ],
)
def test_both_middleware_paths_give_the_same_response(
    ways: Any, alice: Any, team: Any, method: str, path: str, body: str, status: int
) -> None:
    rows = [WorkspaceFactory(name=f"w{n}", owner=alice, team=team, state=State.STOPPED) for n in range(3)]
    headers = {"Authorization": f"Bearer {make_token(alice)[1]}"}
    short, full = ways(method, path.format(id=rows[0].pk), body=body, **headers)
    assert short.status_code == status
    assert seen(short) == seen(full)


@pytest.mark.parametrize("header", ["Bearer", "bearer berth_nonsense", "Bearer  berth_", "BEARER x y"])
def test_invalid_token_gets_the_same_response(ways: Any, header: str) -> None:
    short, full = ways("GET", "/api/v1/me", Authorization=header)
    assert short.status_code == 401
    assert seen(short) == seen(full)


def test_another_host_gets_the_same_response(ways: Any, alice: Any) -> None:
    short, full = ways(
        "GET", "/api/v1/me", Authorization=f"Bearer {make_token(alice)[1]}", Host="elsewhere.example"
    )
    assert short.status_code == full.status_code == 400


def test_unchanged_values_are_not_resent(ways: Any, alice: Any, team: Any) -> None:
    workspace = WorkspaceFactory(owner=alice, team=team, state=State.STOPPED)
    headers = {"Authorization": f"Bearer {make_token(alice)[1]}"}
    path = f"/api/v1/workspaces/{workspace.pk}"
    first, _full = ways("GET", path, **headers)
    short, full = ways("GET", path, **headers, **{"If-None-Match": first["ETag"]})
    assert short.status_code == 304
    assert seen(short) == seen(full)


def test_internal_error_gets_the_same_response(
    ways: Any, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_user: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("portal.people.accounts.selectors.team_roles_of", broken)
    short, full = ways("GET", "/api/v1/me", Authorization=f"Bearer {make_token(alice)[1]}")
    assert short.status_code == 500 and short.json()["code"] == "internal_error"
    assert seen(short) == seen(full)


def test_authorization_header_disables_the_session(as_user: Any, alice: Any, bob: Any) -> None:
    """An attacker who can add `Authorization` must not bypass CSRF protection with a session."""
    browser = as_user(alice)
    browser.handler.enforce_csrf_checks = True
    for header in ("Bearer", "Bearer berth_nonsense", "bearer x"):
        refused = browser.post("/api/v1/tokens", "{}", "application/json", headers={"Authorization": header})
        assert refused.status_code == 401
    # Another scheme is ignored: the session counts, with CSRF protection.
    refused = browser.post("/api/v1/tokens", "{}", "application/json", headers={"Authorization": "Basic x"})
    assert refused.status_code == 403
    answered = browser.get("/api/v1/me", headers={"Authorization": f"Bearer {make_token(bob)[1]}"})
    assert answered.json()["username"] == bob.username
    assert not ApiToken.objects.filter(owner=alice).exists()


def test_short_path_covers_only_views_that_check_tokens_first() -> None:
    assert ApiView.authentication_classes[0] is TokenAuthentication
    taken = {
        path: token_requests._takes_tokens(get_resolver().resolve(path).func)
        for path in ("/api/v1/me", "/api/v1/workspaces", "/api/v1/token-exchange", "/api/v1/docs", "/api/x")
    }
    assert taken == {
        "/api/v1/me": True,
        "/api/v1/workspaces": True,
        "/api/v1/token-exchange": False,
        "/api/v1/docs": False,
        "/api/x": False,
    }


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        ("", None),
        ("Basic berth_x", None),
        ("Bearerberth_x", None),
        ("Bearer", ""),
        ("bEARER berth_x ", "berth_x"),
        ("Bearer berth_x y", "berth_x y"),
    ],
)
def test_token_header_formats(header: str, secret: str | None) -> None:
    assert bearer_token(header) == secret
