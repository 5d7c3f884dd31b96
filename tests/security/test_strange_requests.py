"""Attack: API bodies and URLs that no parser, number type or database can represent."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.test import Client

from portal.common.json_input import InvalidJson, parse_json
from portal.common.scopes import Scope
from tests.factories import make_token

pytestmark = pytest.mark.django_db
LEVELS = 20_000
BODIES = {
    "levels of lists": "[" * LEVELS + "]" * LEVELS,
    "levels of objects": '{"a":' * LEVELS + "1" + "}" * LEVELS,
    "levels that never close": '{"a":[' * LEVELS,
    "levels below Python's own limit": '{"name": ' + "[" * 200 + "]" * 200 + "}",
    "ten thousand digits": '{"name": ' + "9" * 10_000 + "}",
    "four thousand digits": '{"name": ' + "9" * 4_000 + "}",
    "an exponent without end": '{"name": 1e999}',
    "digits behind the point": '{"name": 0.' + "9" * 10_000 + "}",
    "not a number": '{"name": NaN}',
    "half a surrogate pair": '{"name": "\\ud800"}',
    "half a surrogate pair as a key": '{"\\udfff": 1}',
    "NUL": '{"name": "a\\u0000b"}',
    "NUL as a key": '{"a\\u0000b": 1}',
    "NUL far inside": '{"labels": {"a": [{"b": "\\u0000"}]}}',
}
WRITES = (
    ("post", "/api/v1/workspaces"),
    ("post", "/api/v1/me/tokens"),
    ("post", "/api/v1/webhooks"),
    ("post", "/api/v1/users"),
    ("post", "/api/v1/quota-requests"),
    ("patch", "/api/v1/users/alice"),
)


def program(user: Any, *scopes: Scope) -> Client:
    return Client(headers={"Authorization": f"Bearer {make_token(user, *scopes)[1]}"})


@pytest.mark.parametrize(("method", "path"), WRITES, ids=lambda value: value)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_unstorable_body_is_a_client_error(ada, as_user, method, path, body):
    client = as_user(ada)
    answered = getattr(client, method)(path, body, content_type="application/json")
    assert answered.status_code in {400, 404, 405}, answered.content[:300]
    assert answered["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["Users", "Groups"])
def test_scim_errors_have_scim_format(ada, path, body):
    answered = program(ada, Scope.SCIM).post(f"/scim/v2/{path}", body, content_type="application/scim+json")
    assert answered.status_code == 400
    assert answered["Content-Type"].startswith("application/scim+json")


@pytest.mark.parametrize(
    "query",
    [
        'userName eq "' + "\\u0000" * 3 + '"',
        'userName eq "\\ud800"',
        'userName eq "\x00"',
        "active eq " + "9" * 5_000,
        "(" * 1_500,
        "not (" * 300,
    ],
)
def test_unstorable_scim_filter_is_a_client_error(ada, query):
    answered = program(ada, Scope.SCIM).get("/scim/v2/Users", {"filter": query})
    assert answered.status_code in {200, 400}
    assert answered.status_code == 400 or answered.json()["totalResults"] == 0


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/workspaces/a%00b",
        "/api/v1/users/a%00",
        "/api/v1/teams/%00",
        "/api/v1/workspaces?state=%00",
        "/api/v1/workspaces?q=a%00b",
        "/api/v1/workspaces?%00=1",
        "/api/v1/workspaces?cursor=%00",
        "/api/v1/workspaces?page_size=" + "9" * 5_000,
        "/api/v1/workspaces?page_size=%EF%BC%91",
        "/api/v1/users?q=%ED%A0%80%00",
        "/scim/v2/Users/%00",
        "/scim/v2/Users?startIndex=" + "9" * 5_000,
    ],
)
def test_unstorable_url_is_a_client_error(ada, as_user, path):
    client = program(ada, Scope.SCIM) if path.startswith("/scim/") else as_user(ada)
    answered = client.get(path)
    assert answered.status_code in {400, 404} or "startIndex" in path, answered.content[:300]
    assert answered.status_code < 500
    assert "json" in answered["Content-Type"]


@pytest.mark.parametrize("path", ["/teams/a%00/", "/?q=%00", "/sign-in/?next=%00", "/no/such/%00"])
def test_nul_character_in_a_page_url_is_a_client_error(alice, as_user, path):
    for client in (as_user(alice), Client()):
        answered = client.get(path)
        assert answered.status_code == 400
        assert answered["Content-Type"].startswith("text/html")


def test_deeply_nested_passkey_response_is_a_client_error(client):
    for path in ("/sign-in/passkey/", "/sign-in/second-factor/passkey/"):
        for body in ("[" * LEVELS, '{"a":' * 3_000):
            assert client.post(path, {"answer": body, "credential": body}).status_code < 500


def test_deeply_nested_token_exchange_is_a_client_error(client):
    deep = base64.urlsafe_b64encode(("[" * LEVELS).encode()).decode().rstrip("=")
    answered = client.post(
        "/api/v1/token-exchange",
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange"
        f"&subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Ajwt&subject_token={deep}.{deep}.x",
        content_type="application/x-www-form-urlencoded",
    )
    assert answered.status_code == 400


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_json_parser_refuses_unstorable_values(body):
    with pytest.raises(InvalidJson):
        parse_json(body)


def test_json_parser_accepts_valid_documents():
    assert parse_json('{"a": [1, -2, 0.5, 1e3, true, null, "ü🎉"], "b": 9223372036854775807}') == {
        "a": [1, -2, 0.5, 1000.0, True, None, "ü🎉"],
        "b": 2**63 - 1,
    }
    assert parse_json("[" * 60 + "]" * 60)
