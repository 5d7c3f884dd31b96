"""Users and the audit log over REST. Permissions are in `tests/permissions`, services in `tests/accounts`."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from django.test import Client
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.events.models import Event
from portal.people.accounts import services
from portal.people.accounts.models import User
from tests.api.cases import CreateCase, DetailCase, ListCase
from tests.api.conftest import problem
from tests.factories import PASSWORD, WorkspaceFactory

pytestmark = pytest.mark.django_db


class TestUsers(DetailCase, CreateCase):
    path, key, read_scope, write_scope = "users", "username", "users:read", "users:write"
    reader, fixtures = "ada", ("ada", "team", "olga")
    body: ClassVar[dict[str, Any]] = {"username": "gina", "teams": [{"team": "vision", "role": "owner"}]}
    required = ("username",)
    max_queries = 4
    filters: ClassVar[dict[str, int]] = {
        "q=ALI": 1,
        "q=example.org": 4,
        "q=ali example": 1,
        "q=nobody": 0,
        "state=active": 4,
        "state=invited": 0,
        "state=deactivated": 0,
        "role=operator": 1,
        "role=administrator": 1,
        "team=vision": 2,
    }
    moving = frozenset({"last_sign_in_at"})


class TestAuditEntries(ListCase):
    path, read_scope, reader, fixtures = "audit-entries", "audit:read", "ada", ("ada", "team", "olga")
    lacks = ("POST", "DELETE")
    filters: ClassVar[dict[str, int]] = {
        "actor=olga": 1,
        "action=team.created": 1,
        "action=team.": 2,
        "action=team": 0,
        "since=2020-01-01T00:00:00Z": 3,
        "since=2999-01-01T00:00:00Z": 0,
        "until=2020-01-01T00:00:00Z": 0,
    }

    def stock(self) -> None:
        olga = User.objects.get(username="olga")
        made = services.create_team(actor=olga, slug="audio", name="Audio")
        services.set_member(actor=SYSTEM, team=made, username="bob", role="owner")


def test_user_is_invited_over_rest_and_read_back(api: Any, ada: Any, team: Any) -> None:
    body = {"username": "gina", "email": "g@example.org", "teams": [{"team": "vision", "role": "member"}]}
    made = api(ada).post("users", {**body, "roles": []})
    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    assert made["Location"] == "/api/v1/users/gina"
    row = made.json()
    assert (row["state"], row["teams"], row["roles"]) == ("invited", body["teams"], [])
    answer = Client().post(
        "/" + row["invite_url"].split("/", 3)[3], {"password": PASSWORD, "repeated": PASSWORD}
    )
    assert answer.status_code == 302
    read = api(ada).get("users/gina").json()
    assert read["state"] == "active"
    assert not {"invite_url", "password"} & set(read)


def test_omitted_fields_are_unchanged(api: Any, ada: Any, team: Any, bob: Any) -> None:
    changed = api(ada).send("PATCH", "users/bob", {"roles": ["approver"]}).json()
    assert (changed["roles"], changed["email"]) == (["approver"], "bob@example.org")
    assert changed["teams"] == [{"team": "vision", "role": "member"}]
    problem(api(ada).send("PATCH", "users/bob", {"is_superuser": True}), 400, "invalid")
    problem(api(ada).send("PATCH", "users/bob", {"roles": ["king"]}), 400, "invalid")
    assert (
        "teams"
        in problem(api(ada).send("PATCH", "users/bob", {"teams": [{"team": "nowhere"}]}), 400, "invalid")[
            "errors"
        ]
    )


def test_deactivate_and_reactivate(api: Any, ada: Any, bob: Any, team: Any) -> None:
    for _ in range(2):
        row = api(ada).post("users/bob/deactivate", {"note": "left"}).json()
        assert (row["state"], bool(row["deactivated_at"])) == ("deactivated", True)
    read = api(ada).get("users/bob").json()
    assert read["teams"] and api(ada).send("PATCH", "users/bob", read).json() == read
    row = api(ada).post("users/bob/reactivate").json()
    assert (row["state"], row["deactivated_at"]) == ("active", None)
    reset = api(ada).post("users/bob/reset-password").json()
    assert "/welcome/" in reset["reset_url"]
    assert api(ada).post("users/bob/sessions/revoke", {"tokens": True}).json() == {"revoked": 0}


def test_account_with_workspaces_is_not_deleted_without_a_choice(
    api: Any, ada: Any, bob: Any, team: Any
) -> None:
    WorkspaceFactory(owner=bob, team=team, name="paper", state="stopped")
    assert "paper" in problem(api(ada).delete("users/bob"), 409, "has_workspaces")["detail"]
    problem(api(ada).delete("users/bob?workspaces=keep"), 400, "invalid")
    assert api(ada).delete("users/bob?workspaces=delete").status_code == 204
    problem(api(ada).get("users/bob"), 404, "not_found")


def test_sign_ins_show_address_and_browser(api: Any, ada: Any, bob: Any) -> None:
    browser = Client(REMOTE_ADDR="203.0.113.7", headers={"User-Agent": "Test/1", "X-Request-Id": "request-1"})
    browser.post("/sign-in/", {"username": "bob", "password": "wrong"})
    browser.post("/sign-in/", {"username": "bob", "password": PASSWORD})
    browser.post("/sign-out/")
    rows = api(ada).get("users/bob/sign-ins").json()["results"]
    assert [row["action"] for row in rows] == [
        "session.signed_out",
        "session.signed_in",
        "session.sign_in_failed",
    ]
    for row in rows:
        assert (row["address"], row["user_agent"], row["request_id"]) == (
            "203.0.113.7",
            "Test/1",
            "request-1",
        )
    problem(api(ada).get("users/nobody/sign-ins"), 404, "not_found")


def test_unknown_typed_usernames_are_not_stored(api: Any, ada: Any) -> None:
    Client().post("/sign-in/", {"username": "my-secret-password", "password": "x"})
    (row,) = api(ada).get("audit-entries?action=session.sign_in_failed").json()["results"]
    assert "my-secret-password" not in str(row)
    assert "my-secret-password" not in str(list(Event.objects.values()))


def test_lock_out_has_its_own_audit_entry(api: Any, ada: Any, bob: Any, settings: Any) -> None:
    for _ in range(settings.AXES_FAILURE_LIMIT + 3):
        Client(REMOTE_ADDR="203.0.113.7").post("/sign-in/", {"username": "bob", "password": "x"})
    rows = api(ada).get("audit-entries?action=session.").json()["results"]
    # One entry and one notice per lock-out, regardless of further attempts.
    assert rows[0]["action"] == "session.locked_out"
    assert {row["action"] for row in rows[1:]} == {"session.sign_in_failed"}
    assert len(rows) == settings.AXES_FAILURE_LIMIT
    (notice,) = api(bob).get("notifications").json()["results"]
    assert "from 203.0.113.7" in notice["body"]
    # A user locked out by an attacker can sign in from another address.
    at_home = Client(REMOTE_ADDR="198.51.100.1")
    assert at_home.post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 302


def test_audit_entry_names_the_token(api: Any, ada: Any) -> None:
    program = api(ada)
    before = timezone.now().isoformat().replace("+00:00", "Z")
    program.post("users", {"username": "gina"})
    (row,) = program.get(f"audit-entries?actor=ada&since={before}&action=user.invited").json()["results"]
    assert row["token"].startswith("berth_")
    assert row["data"]["username"] == "gina"
    assert row["request_id"]
