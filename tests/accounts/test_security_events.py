"""A user's own security events: on the page and over REST, never those of others."""

from __future__ import annotations

from typing import Any

import pytest

from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.people.accounts import services, sessions, tokens, users
from portal.people.accounts.mfa import services as mfa
from portal.people.accounts.models import SiteRole
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
URL = "/api/v1/me/security-events"
ORIGIN = {"REMOTE_ADDR": "203.0.113.7", "HTTP_USER_AGENT": "Mozilla/5.0 (X11; Linux) Firefox/142.0"}


def listed(client: Any) -> list[dict[str, Any]]:
    """Return the events, without the creation of the client's own token."""
    answer = client.get(URL)
    assert answer.status_code == 200, answer.content
    return [row for row in answer.json()["results"] if row["message"] != "created the token “test”"]


def test_own_acts_and_failed_attempts_show_their_origin(client, bob, with_token):
    wrong = {"username": "bob", "password": "not-the-password"}
    client.post("/sign-in/", wrong, **ORIGIN)
    client.post("/sign-in/", {**wrong, "username": "nobody-here"}, **ORIGIN)
    tokens.create_token(actor=bob, user=bob, name="laptop")
    made, failed = listed(with_token(bob))
    assert (failed["action"], failed["actor"]) == ("session.sign_in_failed", "Somebody")
    assert (failed["address"], failed["user_agent"]) == ("203.0.113.7", ORIGIN["HTTP_USER_AGENT"])
    assert (made["action"], made["actor"]) == ("token.created", "bob")
    assert made["message"] == "created the token “laptop”"


def test_acts_of_administrators_name_them_without_their_address(bob, ada, team, as_user, with_token):
    created = tokens.create_token(actor=bob, user=bob, name="laptop")
    browser = as_user(ada)
    revoked = browser.post(f"/account/tokens/{created.token.pk}/revoke/", **ORIGIN)
    assert revoked.status_code == 302
    services.set_member(actor=ada, team=team, username="bob", role="viewer")
    users.end_sessions(actor=ada, user=bob)
    bob.refresh_from_db()
    page = as_user(bob).get("/account/security/").content.decode()
    assert "set the role of bob in" in page and "203.0.113.7" not in page
    assert page.index("ended all sessions of bob") < page.index("created the token")
    users.change(actor=ada, user=bob, roles=[SiteRole.APPROVER])
    rows = listed(with_token(bob))
    assert [row["action"] for row in rows] == [
        AuditKind.USER_CHANGED,
        AuditKind.SESSION_ENDED,
        AuditKind.TEAM_MEMBER_SET,
        AuditKind.TOKEN_REVOKED,
        AuditKind.TOKEN_CREATED,
    ]
    assert {row["actor"] for row in rows[:-1]} == {"ada"}
    assert {(row["address"], row["user_agent"], row["token"]) for row in rows[:-1]} == {(None, "", "")}
    # The audit log itself has the address.
    assert Event.objects.get(kind=AuditKind.TOKEN_REVOKED).address == "203.0.113.7"


def test_events_of_others_are_never_listed(bob, ada, alice, as_user, with_token):
    for user in (alice, ada):
        tokens.create_token(actor=user, user=user, name=f"of {user.username}")
        sessions.sign_in_failed(username=user.username, locked_out=False)
    other = UserFactory(username="bobby")
    users.change(actor=ada, user=other, email="bobby@example.org")
    mfa.reset(actor=ada, user=other)
    assert "No events yet" in as_user(bob).get("/account/security/").content.decode()
    assert listed(with_token(bob)) == []
    # An administrator sees only the own ones here, too.
    assert {row["message"] for row in listed(with_token(ada))} == {
        "created the token “of ada”",
        "could not sign in as ada",
    }


def test_settings_are_no_security_events_and_pages_continue(bob, as_user, with_token):
    for _ in range(50):
        sessions.sign_in_failed(username="bob", locked_out=False)
    services.set_mail_notices(actor=bob, enabled=False)
    program = with_token(bob)
    first = program.get(f"{URL}?page_size=50").json()
    assert len(first["results"]) == 50
    assert len(program.get(first["next"]).json()["results"]) == 1
    browser = as_user(bob)
    assert "Page 1 of 2" in browser.get("/account/security/").content.decode()
    assert browser.get("/account/security/?page=2").content.decode().count('<tr id="e-') == 1
