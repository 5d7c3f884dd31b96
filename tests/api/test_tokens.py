"""GET, POST /api/v1/tokens and DELETE of one"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.people.accounts.models import ApiToken
from tests.api.conftest import Api, problem
from tests.factories import make_token

pytestmark = pytest.mark.django_db


def test_the_secret_is_shown_once(api: Any, bob: Any) -> None:
    made = api(bob).post("tokens", {"name": "ci", "scopes": ["workspaces:read"]})

    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    body = made.json()
    program = Api(Client(headers={"Authorization": f"Bearer {body['secret']}"}))
    assert program.get("workspaces").status_code == 200
    problem(program.get("teams"), 403, "permission_denied")
    rows = api(bob).get("tokens").json()["results"]
    assert body["id"] in [row["id"] for row in rows]
    assert all("secret" not in row and "digest" not in row for row in rows)
    one = api(bob).get(f"tokens/{body['id']}").json()
    assert (one["name"], one["prefix"]) == ("ci", body["secret"][: len(one["prefix"])])


def test_revoked_token_is_refused_at_once(api: Any, bob: Any) -> None:
    body = api(bob).post("tokens", {"name": "ci"}).json()
    program = Api(Client(headers={"Authorization": f"Bearer {body['secret']}"}))
    assert program.get("me").status_code == 200

    assert api(bob).post(f"tokens/{body['id']}/revoke").status_code == 204

    problem(program.get("me"), 401, "authentication_failed")
    problem(api(bob).get(f"tokens/{body['id']}"), 404, "not_found")


def test_tokens_of_others_are_hidden(api: Any, bob: Any, alice: Any, charlie: Any) -> None:
    """Operators see them: `tests/permissions`, `tests/service_accounts`."""
    token, _ = make_token(bob)

    for user in (alice, charlie):
        assert str(token.pk) not in api(user).get("tokens").content.decode()
        problem(api(user).get(f"tokens/{token.pk}"), 404, "not_found")
        problem(api(user).post(f"tokens/{token.pk}/revoke"), 404, "not_found")


def test_token_cannot_create_a_broader_token(api: Any, bob: Any) -> None:
    narrow = api(bob, "tokens:write", "workspaces:read")

    for scopes in (["all"], ["tokens:write", "teams:write"]):
        problem(narrow.post("tokens", {"name": "x", "scopes": scopes}), 403, "not_allowed")
    assert narrow.post("tokens", {"name": "x", "scopes": ["workspaces:read"]}).status_code == 201
    assert narrow.post("tokens", {"name": "y"}).json()["scopes"] == ["tokens:write", "workspaces:read"]


def test_token_cannot_create_a_longer_lived_token(bob: Any) -> None:
    now = timezone.now()
    _, secret = make_token(bob, expires_at=now + timedelta(days=2))
    program = Api(Client(headers={"Authorization": f"Bearer {secret}"}))

    problem(program.post("tokens", {"name": "x"}), 403, "not_allowed")
    late = {"name": "x", "expires_at": (now + timedelta(days=3)).isoformat()}
    problem(program.post("tokens", late), 403, "not_allowed")
    early = {"name": "x", "expires_at": (now + timedelta(days=1)).isoformat()}
    assert program.post("tokens", early).status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "x", "scopes": ["nonsense"]}, "scopes"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": "soon"}, "expires_at"),
    ],
)
def test_invalid_input_is_a_field_error(api: Any, bob: Any, body: Any, field: str) -> None:
    program = api(bob)
    assert field in problem(program.post("tokens", body), 400, "invalid")["errors"]
    assert ApiToken.objects.count() == 1


def test_expired_token_and_token_of_an_inactive_user_are_refused(bob: Any) -> None:
    token, secret = make_token(bob)
    program = Api(Client(headers={"Authorization": f"Bearer {secret}"}))
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now())
    problem(program.get("me"), 401, "authentication_failed")
    ApiToken.objects.filter(pk=token.pk).update(expires_at=None)
    bob.is_active = False
    bob.save()
    problem(program.get("me"), 401, "authentication_failed")
