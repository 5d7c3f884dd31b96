"""`berth user …`."""

from __future__ import annotations

import pytest

from portal.people.accounts.models import User
from tests.factories import UserFactory, make_token


@pytest.fixture
def as_ada(as_bob, monkeypatch):
    """`berth …` signed in as an administrator; bob exists."""
    ada = UserFactory(username="ada", is_superuser=True)
    monkeypatch.setenv("BERTH_TOKEN", make_token(ada)[1])
    return as_bob


def test_from_invitation_to_deletion(as_ada):
    ran = as_ada(
        "user", "invite", "gina", "--email", "g@example.org", "--team", "vision", "--role", "operator"
    )
    assert ran.code == 0, ran.err
    assert "/welcome/" in ran.out and len(ran.out.split()) == 1
    gina = User.objects.get(username="gina")
    assert (gina.roles, gina.memberships.get().role) == (["operator"], "member")
    listed = as_ada("user", "ls", "gin")
    assert listed.out.splitlines()[1].split() == [
        *("gina", "invited", "none", "g@example.org", "operator", "vision", "(member)")
    ]

    assert as_ada("user", "ls", "gin", "--second-factor", "passkey").out.splitlines()[1:] == []

    refused = as_ada("user", "deactivate", "gina")
    assert refused.code == 2 and User.objects.get(username="gina").is_active
    assert as_ada("user", "deactivate", "gina", "--yes").out == "gina is deactivated.\n"
    assert not User.objects.get(username="gina").is_active
    assert as_ada("user", "reactivate", "gina").out == "gina is invited.\n"
    assert as_ada("user", "rm", "gina", "--yes").code == 0
    assert as_ada("user", "ls", "gin").out.splitlines()[1:] == []
    assert as_ada("user", "reactivate", "gina").code == 5


def test_viewer_and_auditor_roles_can_be_set(as_ada):
    assert as_ada("user", "invite", "vic", "--team", "vision", "--viewer").code == 0
    assert User.objects.get(username="vic").memberships.get().role == "viewer"
    assert as_ada("user", "invite", "una", "--role", "auditor").code == 0
    assert User.objects.get(username="una").roles == ["auditor"]
    both = as_ada("user", "invite", "uma", "--role", "auditor", "--role", "operator")
    assert both.code != 0 and "cannot have another portal role" in both.err


def test_user_commands_need_an_administrator(as_bob):
    ran = as_bob("user", "ls")
    assert ran.code == 1 and "Only administrators" in ran.err


def test_last_administrator_sees_the_reason(as_ada):
    ran = as_ada("user", "deactivate", "ada", "--yes", "--json")
    assert ran.code == 1 and "last administrator" in ran.json["error"]["message"]
