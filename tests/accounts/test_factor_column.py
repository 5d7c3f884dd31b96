"""Second factors of users, as administrators and auditors see them on pages, over REST and by command."""

from __future__ import annotations

import re

import pytest
from allauth.mfa.models import Authenticator
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.people.accounts import service_accounts
from portal.people.accounts.models import User
from tests.accounts.authenticators import with_app, with_codes
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def with_passkey(user: User, name: str = "Phone") -> None:
    Authenticator.objects.create(user=user, type=Authenticator.Type.WEBAUTHN, data={"name": name})
    User.objects.filter(pk=user.pk).update(mfa_since=timezone.now())


@pytest.fixture
def people(ada, alice, bob, charlie):
    """alice has both factors, bob two passkeys, charlie only unused recovery codes."""
    with_app(alice)
    with_codes(alice)
    with_passkey(alice)
    with_passkey(bob)
    with_passkey(bob, "Stick")
    with_codes(charlie)


@pytest.fixture
def ci(alice, team):
    return service_accounts.create(actor=alice, team=team, name="ci")


def cells(page) -> dict[str, str]:
    """The column's text by user."""
    found = {}
    for row in re.findall(r"<tr>\s*<td.*?</tr>", page.content.decode(), re.DOTALL):
        columns = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row.split("</td>")]
        found[columns[0].split()[0]] = columns[2]
    return found


def listed(browser, query: str) -> dict[str, object]:
    answer = browser.get(f"/api/v1/users{query}")
    assert answer.status_code == 200, answer.content
    return {row["username"]: row["second_factors"] for row in answer.json()["results"]}


def test_rows_list_second_factors(as_user, ada, people, ci):
    browser = as_user(ada)
    assert cells(browser.get("/users/")) == {
        "ada": "none",
        "alice": "App, Passkey",
        "bob": "Passkey",
        "charlie": "none",
        "svc-ci": "–",
    }
    assert listed(browser, "") == {
        "ada": [],
        "alice": ["totp", "passkey"],
        "bob": ["passkey"],
        "charlie": [],
        "svc-ci": None,
    }
    assert browser.get("/api/v1/users/bob").json()["second_factors"] == ["passkey"]
    page = browser.get("/users/alice/").content.decode()
    assert "(app, 1 passkey)" in " ".join(page.split())


@pytest.mark.parametrize(
    ("factor", "names"),
    [("none", {"ada", "charlie"}), ("totp", {"alice"}), ("passkey", {"alice", "bob"})],
)
def test_users_are_filtered_by_second_factor(as_user, ada, people, ci, factor, names):
    browser = as_user(ada)
    assert set(listed(browser, f"?second_factor={factor}")) == names
    page = browser.get(f"/users/?second_factor={factor}")
    assert set(cells(page)) == names
    assert f'<option value="{factor}" selected>' in page.content.decode()


def test_unknown_filter_is_400_over_rest_and_ignored_by_the_page(as_user, ada, people):
    browser = as_user(ada)
    assert browser.get("/api/v1/users?second_factor=sms").status_code == 400
    assert set(cells(browser.get("/users/?second_factor=sms"))) == {"ada", "alice", "bob", "charlie"}


@pytest.mark.parametrize("path", ["/users/", "/api/v1/users", "/api/v1/users?second_factor=none"])
def test_query_count_is_constant(as_user, ada, path):
    browser = as_user(ada)
    browser.get(path)
    counts = []
    for more in (1, 48):
        for _ in range(more):
            user = UserFactory()
            if "none" not in path:
                with_app(user)
                with_passkey(user)
        with CaptureQueriesContext(connection) as queries:
            assert browser.get(path).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_secrets_are_not_selected(as_user, ada, people):
    with CaptureQueriesContext(connection) as queries:
        as_user(ada).get("/api/v1/users")
    rows = [query["sql"] for query in queries if "mfa_authenticator" in query["sql"]]
    assert rows and not any('"data"' in sql for sql in rows)


@pytest.mark.parametrize(("username", "status"), [("una", 200), ("olga", 403), ("alice", 403)])
def test_column_needs_permission_to_see_users(request, as_user, people, username, status):
    browser = as_user(request.getfixturevalue(username))
    for path in ("/users/?second_factor=none", "/api/v1/users?second_factor=none", "/api/v1/users/charlie"):
        answer = browser.get(path)
        assert answer.status_code == status
        if status != 200:
            assert "passkey" not in answer.content.decode().lower()
