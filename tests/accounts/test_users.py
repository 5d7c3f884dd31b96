"""Users: invitation links, changes, password resets and deletion."""

from __future__ import annotations

import datetime as dt
from io import StringIO

import pytest
from django.core import mail
from django.core.management import CommandError, call_command
from django.test import Client

from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts import links, sessions, token_lookup, users
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import AccountState, ApiToken, User
from portal.workspaces.lifecycle import State
from tests.factories import PASSWORD, MembershipFactory, UserFactory, WorkspaceFactory, make_token

pytestmark = pytest.mark.django_db
NEW = "another-long-password"


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def choose(url: str, password: str = NEW, repeated: str = "") -> tuple[Client, int]:
    """Follow a link in a new browser and choose a password there; return the responses."""
    browser = Client()
    answer = browser.post(path_of(url), {"password": password, "repeated": repeated or password})
    return browser, answer.status_code


def signed_in_as(browser: Client) -> str:
    answer = browser.get("/api/v1/me")
    return answer.json()["username"] if answer.status_code == 200 else ""


# --- invitations ----------------------------------------------------------------------------------


def test_invited_user_sets_a_password_is_signed_in_and_joins_the_teams(ada, team):
    link = users.invite(
        actor=ada, username="gina", email="gina@example.org", teams={"vision": "owner"}, roles=["operator"]
    )
    gina = link.user
    assert gina.state == AccountState.INVITED
    assert "gina" in Client().get(path_of(link.url)).content.decode()
    browser, status = choose(link.url)
    assert (status, signed_in_as(browser)) == (302, "gina")
    gina.refresh_from_db()
    assert (gina.state, gina.roles) == (AccountState.ACTIVE, ["operator"])
    assert gina.memberships.get(team=team).role == "owner"
    kinds = set(Event.objects.filter(targets__key=str(gina.pk)).values_list("kind", flat=True))
    assert {"user.invited", "user.joined", "session.signed_in"} <= kinds


def test_a_link_works_once(ada):
    link = users.invite(actor=ada, username="gina")
    choose(link.url)
    browser, status = choose(link.url, "yet-another-password")
    assert (status, signed_in_as(browser)) == (409, "")
    assert User.objects.get(username="gina").check_password(NEW)
    assert Client().get(path_of(link.url)).status_code == 409


def test_a_link_expires(ada, clock, settings):
    link = users.invite(actor=ada, username="gina")
    clock.shift(settings.BERTH_INVITATION_HOURS * 3600 - 1)
    assert Client().get(path_of(link.url)).status_code == 200
    clock.shift(2)
    assert choose(link.url)[1] == 409
    assert link.expires_at <= dt.datetime.now(dt.UTC)


def test_another_invitation_replaces_the_first(ada):
    first = users.invite(actor=ada, username="gina")
    second = users.invite_again(actor=ada, user=first.user)
    assert choose(first.url)[1] == 409
    assert choose(second.url)[1] == 302
    with pytest.raises(StateConflict):
        users.invite_again(actor=ada, user=first.user)


@pytest.mark.parametrize("change", ["user", "kind", "text", "signature"])
def test_tampered_link_is_refused(ada, alice, change):
    link = users.invite(actor=ada, username="gina")
    before, user_id, text = link.url.rstrip("/").rsplit("/", 2)
    changed = {
        "user": f"{before}/{alice.pk}/{text}/",
        "kind": f"{before}/{user_id}/r{text[1:]}/",
        "text": f"{before}/{user_id}/i0{text[2:]}/"
        if text[1] != "0"
        else f"{before}/{user_id}/i1{text[2:]}/",
        "signature": f"{before}/{user_id}/{text[:-1]}{'a' if text[-1] != 'a' else 'b'}/",
    }[change]
    assert choose(changed)[1] == 409


@pytest.mark.parametrize("password", ["short", "password123", "gina-gina-gina", "1234567890"])
def test_a_weak_password_is_refused_and_the_link_still_works(ada, password):
    link = users.invite(actor=ada, username="gina-gina")
    assert choose(link.url, password)[1] == 400
    assert choose(link.url, NEW, "something-else-entirely")[1] == 400
    assert choose(link.url)[1] == 302


def test_invitation_signs_out_the_previous_user(ada, as_user, alice):
    link = users.invite(actor=ada, username="gina")
    browser = as_user(alice)
    before = browser.session.session_key
    browser.post(path_of(link.url), {"password": NEW, "repeated": NEW})
    assert signed_in_as(browser) == "gina"
    assert browser.session.session_key != before


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"username": "Gina"}, "username"),
        ({"username": "../x"}, "username"),
        ({"username": "alice"}, "username"),
        ({"username": "g\x00ina", "email": "not an address"}, "email"),
        ({"email": "ALICE@example.org"}, "email"),
        ({"teams": {"nowhere": "member"}}, "teams"),
        ({"teams": {"vision": "king"}}, "teams"),
        ({"roles": ["king"]}, "roles"),
    ],
)
def test_invalid_input_is_a_field_error(ada, team, fields, field):
    with pytest.raises(InvalidInput) as refused:
        users.invite(actor=ada, **{"username": "gina", **fields})
    assert list(refused.value.field_errors) == [field]
    assert refused.value.field_errors[field][0]
    assert not User.objects.filter(username="gina").exists()


@pytest.mark.parametrize("actor_name", ["alice", "olga"])
def test_only_administrators_manage_people(request, team, bob, actor_name):
    actor = request.getfixturevalue(actor_name)
    for act in (
        lambda: users.invite(actor=actor, username="gina"),
        lambda: users.change(actor=actor, user=actor, roles=["administrator"]),
        lambda: users.reset_password(actor=actor, user=bob),
        lambda: users.end_sessions(actor=actor, user=bob),
        lambda: users.delete(actor=actor, user=bob),
    ):
        with pytest.raises(NotAllowed):
            act()


# --- mail -----------------------------------------------------------------------------------------


def test_link_is_mailed_if_mail_is_configured(ada, settings, sent):
    settings.BERTH_MAIL = True
    assert users.invite(actor=ada, username="hal").mailed is False
    link = users.invite(actor=ada, username="gina", email="gina@example.org")
    assert link.mailed
    assert "welcome" not in str(sent.messages)  # no queue contains a link
    sent.run()
    (message,) = mail.outbox
    assert message.to == ["gina@example.org"]
    address = next(word for word in message.body.split() if "/welcome/" in word)
    assert choose(address)[1] == 302


def test_password_reset_does_not_reveal_accounts(alice, settings, sent, clock):
    settings.BERTH_MAIL = True
    answers = set()
    for name in ("alice", "ALICE@example.org", "nobody", "nobody@example.org"):
        page = Client().post("/sign-in/forgotten/", {"name": name})
        html = page.content.decode()
        answers.add((page.status_code, html[html.index("<main") : html.index("</main>")]))
    assert len(answers) == 1
    assert "a link was sent" in answers.pop()[1]
    sent.run()
    (message,) = mail.outbox  # requested twice within five minutes: one mail
    address = next(word for word in message.body.split() if "/welcome/" in word)
    clock.shift(settings.BERTH_FORGOTTEN_HOURS * 3600 + 1)
    assert choose(address)[1] == 409


def test_password_reset_replaces_the_password_and_ends_all_sessions(alice, settings, sent, as_user):
    settings.BERTH_MAIL = True
    other = as_user(alice)
    users.forgot_password("alice")
    sent.run()
    address = next(word for word in mail.outbox[0].body.split() if "/welcome/" in word)
    browser, status = choose(address)
    assert (status, signed_in_as(browser), signed_in_as(other)) == (302, "alice", "")


def test_password_reset_page_is_404_without_mail(alice):
    assert Client().get("/sign-in/forgotten/").status_code == 404


# --- changes --------------------------------------------------------------------------------------


def test_change_sets_the_given_roles_teams_and_email(ada, team, bob):
    users.change(actor=ada, user=bob, email="b@example.org", roles=["approver"], teams={"vision": "owner"})
    bob.refresh_from_db()
    assert (bob.email, bob.roles) == ("b@example.org", ["approver"])
    assert bob.memberships.get().role == "owner"
    users.change(actor=ada, user=bob, teams={})
    assert not bob.memberships.exists()
    assert bob.roles == ["approver"]


def test_last_administrator_cannot_be_demoted(ada):
    # Invited and deactivated administrators do not count.
    users.invite(actor=ada, username="gina", roles=["administrator"])
    UserFactory(username="dea", is_superuser=True, is_active=False)
    for act in (
        lambda: users.change(actor=ada, user=ada, roles=["operator"]),
        lambda: users.reset_password(actor=ada, user=ada),
        lambda: users.delete(actor=SYSTEM, user=ada),
    ):
        with pytest.raises(StateConflict, match="last administrator"):
            act()
    UserFactory(username="other", is_superuser=True)
    users.change(actor=ada, user=ada, roles=[])
    assert not User.objects.get(username="ada").administers


def test_a_reset_ends_the_password_and_the_sessions_and_leaves_tokens(ada, alice, as_user):
    browser = as_user(alice)
    _, secret = make_token(alice)
    link = users.reset_password(actor=ada, user=alice)
    assert signed_in_as(browser) == ""
    assert Client().post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 200
    assert token_lookup.find_valid_token(secret) is not None
    assert choose(link.url)[1] == 302
    assert choose(link.url)[1] == 409


def test_sessions_end_at_once_and_tokens_only_if_selected(ada, alice):
    browser = Client()
    browser.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    _, secret = make_token(alice)
    assert users.end_sessions(actor=ada, user=alice) == 1
    assert signed_in_as(browser) == ""
    assert not sessions.sessions_of(alice).exists()
    assert token_lookup.find_valid_token(secret) is not None
    assert users.end_sessions(actor=alice, user=alice, tokens=True) == 0
    assert token_lookup.find_valid_token(secret) is None


# --- deletion -------------------------------------------------------------------------------------


def test_deleted_account_keeps_its_username_and_loses_all_access(ada, team, bob, as_user):
    browser = as_user(bob)
    make_token(bob)
    users.delete(actor=ada, user=bob)
    bob.refresh_from_db()
    assert (bob.state, bob.email, bob.roles, bob.is_active) == (AccountState.DELETED, "", [], False)
    assert not bob.memberships.exists()
    assert not ApiToken.objects.filter(owner=bob).exists()
    assert signed_in_as(browser) == ""
    with pytest.raises(InvalidInput) as refused:
        users.invite(actor=ada, username="bob")
    assert "home folders" in refused.value.field_errors["username"][0]
    with pytest.raises(StateConflict):
        users.change(actor=ada, user=bob, roles=["operator"])
    users.delete(actor=ada, user=bob)
    assert Event.objects.filter(kind="user.deleted").count() == 1


def test_deletion_names_workspaces_unless_they_are_included(ada, team, bob):
    workspace = WorkspaceFactory(owner=bob, team=team, name="paper", state=State.STOPPED)
    with pytest.raises(StateConflict, match="paper"):
        users.delete(actor=ada, user=bob)
    assert User.objects.get(pk=bob.pk).is_active
    users.delete(actor=ada, user=bob, delete_workspaces=True)
    workspace.refresh_from_db()
    assert workspace.desired_state == "deleted" or workspace.state == State.TERMINATED


# --- commands -------------------------------------------------------------------------------------


def shell(name: str, *arguments: str) -> str:
    out = StringIO()
    call_command(name, *arguments, stdout=out)
    return out.getvalue().strip()


def test_create_user_prints_a_link(team):
    url = shell("create_user", "gina", "--team", "vision", "--role", "owner", "--role", "approver")
    assert choose(url)[1] == 302
    gina = User.objects.get(username="gina")
    assert gina.roles == ["approver"]
    assert gina.memberships.get().role == "owner"


def test_create_user_takes_a_password_from_the_environment(team, monkeypatch):
    monkeypatch.setenv("BERTH_USER_PASSWORD", NEW)
    assert shell("create_user", "gina", "--team", "vision") == ""
    assert Client().post("/sign-in/", {"username": "gina", "password": NEW}).status_code == 302
    assert shell("create_token", "gina").startswith("berth_")
    monkeypatch.setenv("BERTH_USER_PASSWORD", "short")
    with pytest.raises(CommandError, match="password"):
        shell("create_user", "hal")
    assert not User.objects.filter(username="hal").exists()


@pytest.mark.parametrize(
    "arguments", [["alice"], ["x y"], ["gina", "--team", "nowhere"], ["gina", "--role", "owner"]]
)
def test_create_user_reports_invalid_arguments(alice, arguments):
    with pytest.raises(CommandError):
        shell("create_user", *arguments)
    assert not User.objects.filter(username="gina").exists()


def test_membership_of_another_team_is_unchanged(ada, team):
    link = users.invite(actor=ada, username="gina", teams={"vision": "member"})
    other = MembershipFactory(user=link.user).team
    users.change(actor=ada, user=link.user, email="g@example.org")
    assert set(link.user.memberships.values_list("team__slug", flat=True)) == {"vision", other.slug}


def test_links_are_valid_for_their_own_kind_only(alice):
    for kind in (LinkKind.RESET, LinkKind.FORGOTTEN):
        user_id, text = links.make(alice, kind).rstrip("/").rsplit("/", 2)[1:]
        assert links.resolve(alice.pk, text) == (alice, kind)
        assert user_id == str(alice.pk)
    assert (
        links.resolve(alice.pk, links.make(alice, LinkKind.INVITATION).rstrip("/").rpartition("/")[2]) is None
    )
