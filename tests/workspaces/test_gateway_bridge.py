"""What the portal publishes to the gateway: access, addresses and app secrets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from django.utils import timezone

from portal.common import request_context
from portal.common.errors import NotAllowed, StateConflict, Unavailable
from portal.common.events import live
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.passes import key_of
from portal.people.accounts import changes, service_accounts
from portal.people.accounts.domain_events import SignedOut, UserDeactivated
from portal.people.accounts.models import ApiToken, User
from portal.workspaces import services
from portal.workspaces.gateway import publishing, tickets, workspace_views
from portal.workspaces.gateway.entries import Entry
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.tokens import app_token
from provisioning.endpoints import socket_endpoint
from provisioning.types import WorkspaceRef, external_name
from tests import sites
from tests.factories import make_token
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
ENDPOINT = "http://127.0.0.1:18001"


@pytest.fixture
def sent_updates(monkeypatch) -> list[tuple]:
    """Record what is written for the gateway, in order."""
    calls: list[tuple] = []
    monkeypatch.setattr(live, "connection", lambda: "store")
    monkeypatch.setattr(live, "publish", lambda *_: None)
    monkeypatch.setattr(live, "publish_feed", lambda: None)
    monkeypatch.setattr(
        workspace_views, "store_view", lambda _, view: calls.append(("view", view.state, view.endpoint))
    )
    monkeypatch.setattr(tickets, "revoke_workspace", lambda _, name: calls.append(("revoked", name)))
    return calls


@pytest.fixture
def workspace(make, alice, local_pool) -> Workspace:
    return make(alice)


@pytest.fixture
def running(workspace, sent) -> Workspace:
    run_until_ready(sent, workspace, ENDPOINT)
    return workspace


def test_every_state_is_published_to_the_gateway(sent_updates, make, alice, local_pool, sent):
    workspace = make(alice)
    run_until_ready(sent, workspace, ENDPOINT)
    services.stop(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, "stop", "stopped")
    services.delete(actor=alice, workspace_id=workspace.pk)
    assert answer(sent, "delete", "absent")
    assert list(dict.fromkeys(what[1] for what in sent_updates if what[0] == "view")) == [
        "provisioning",
        "running",
        "stopping",
        "stopped",
        "terminating",
        "terminated",
    ]
    # Its address is published with its state: reachable only while it runs.
    assert ("view", "running", ENDPOINT) in sent_updates
    assert sent_updates[-1] == ("revoked", workspace.external_name)


@pytest.fixture
def second(settings, tmp_path) -> Path:
    """A valid second, and a pass under it."""
    settings.BERTH_PASSES_DIR, settings.BERTH_GATEWAY_SECRET = str(tmp_path), "the gateway's own secret"
    home = tmp_path / key_of(settings.BERTH_GATEWAY_SECRET)
    (home / "held-1" / "ws").mkdir(parents=True)
    return home / "1795400000"


@pytest.mark.parametrize("harm", ["stopped", "signed out", "switched off", "token revoked"])
def test_revoked_right_invalidates_passes(
    sent_updates, running, alice, sent, second, monkeypatch, harm, django_capture_on_commit_callbacks
):
    monkeypatch.setattr(tickets, "revoke_user", lambda *_: None)
    monkeypatch.setattr(changes.live, "connection", lambda: SimpleNamespace(incr=lambda _: None))
    second.symlink_to("held-1")
    publishing.publish(running)
    assert second.is_symlink()
    with django_capture_on_commit_callbacks(execute=True):
        match harm:
            case "stopped":
                services.stop(actor=alice, workspace_id=running.pk)
            case "signed out":
                publishing.end_sessions(SignedOut(alice.pk))
            case "switched off":
                publishing.end_access(UserDeactivated(alice, alice))
            case "token revoked":
                changes.announce()
    assert not second.is_symlink()
    # The content is the gateway's own.
    assert (second.parent / "held-1" / "ws").is_dir()
    second.parent.rename(second.parent.with_name("lost"))
    publishing.end_sessions(SignedOut(alice.pk))


def test_view_contains_access_and_address(running, alice):
    view = publishing.view_of(running)
    assert view.external_name == external_name(str(running.pk)) == running.external_name
    assert view.user_ids == {str(alice.pk)}
    assert view.state == "running"
    assert not view.simulated
    assert view.revision > 0


@pytest.mark.parametrize("auth", ["none", "bearer", "code-server"])
def test_app_secret_is_added_in_the_configured_way(running, auth):
    running.template.upstream_auth = auth
    secret = app_token(running.pk, running.generation)
    headers = publishing.upstream_headers(running)
    if auth == "none":
        assert headers == {}
    else:
        assert secret in str(headers)
        assert set(headers) == {"Cookie" if auth == "code-server" else "Authorization"}
    assert secret not in repr(publishing.view_of(running))


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "http://127.0.0.1:1/x", "ftp://x:1", "http://a b:1", "http://x:99999"]
)
def test_invalid_endpoint_gives_no_address(running, endpoint):
    Workspace.objects.filter(pk=running.pk).update(endpoint=endpoint)
    running.refresh_from_db()
    found = publishing.view_of(running)
    assert (found.endpoint, found.socket, found.gateway) == ("", "", "")
    assert not found.reachable


def test_socket_is_reachable_for_its_own_start_only(running):
    for generation, leads in ((running.generation, True), (running.generation + 1, False)):
        running.endpoint = socket_endpoint(WorkspaceRef(str(running.pk), generation))
        found = publishing.view_of(running)
        assert (found.socket, found.endpoint) == (
            f"{running.external_name}.{generation}" if leads else "",
            "",
        )
        assert found.reachable is leads


@pytest.mark.parametrize("what", [State.STOPPED, State.TERMINATING, State.TERMINATED, State.FAILED])
def test_stopped_workspace_cannot_be_entered(running, what):
    assert publishing.view_of(running).reachable
    Workspace.objects.filter(pk=running.pk).update(state=what)
    running.refresh_from_db()
    assert not publishing.view_of(running).reachable


# --- tickets --------------------------------------------------------------------------------------


def test_owner_gets_a_ticket(running, alice, monkeypatch):
    given = {}
    monkeypatch.setattr(tickets, "issue", lambda _, **fields: given.update(fields) or "t")
    assert publishing.issue_ticket(actor=alice, workspace=running) == "t"
    assert given == {"external_name": running.external_name, "user_id": str(alice.pk)}
    [opened] = Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED)
    assert (opened.actor, opened.workspace_id) == (alice, running.pk)


def test_refused_request_is_not_recorded_as_opened(running, alice, bob):
    with pytest.raises(NotAllowed):
        publishing.issue_ticket(actor=bob, workspace=running)
    with pytest.raises(Unavailable):
        publishing.issue_ticket(actor=alice, workspace=running)
    assert not Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED).exists()


@pytest.mark.parametrize("username", ["bob", "charlie", "olga"])
def test_only_the_owner_gets_a_ticket(running, request, username):
    with pytest.raises(NotAllowed):
        publishing.issue_ticket(actor=request.getfixturevalue(username), workspace=running)


@pytest.mark.parametrize("what", [item for item in State if item != State.RUNNING])
def test_no_ticket_for_a_workspace_that_is_not_running(running, alice, what):
    running.state = what
    with pytest.raises(StateConflict):
        publishing.issue_ticket(actor=alice, workspace=running)


def test_no_ticket_for_a_simulated_workspace(make, alice, pool, settle):
    workspace = make(alice, "sim-cpu")
    settle()
    workspace.refresh_from_db()
    with pytest.raises(StateConflict) as refused:
        publishing.issue_ticket(actor=alice, workspace=workspace)
    assert refused.value.code == "simulated"


def test_without_redis_access_is_refused_with_the_reason(running, alice):
    with pytest.raises(Unavailable):
        publishing.issue_ticket(actor=alice, workspace=running)
    publishing.end_sessions(SignedOut(alice.pk))


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("all", True), ("workspaces:connect", True), ("workspaces:read", False), ("workspaces:write", False)],
)
def test_token_with_the_open_scope_enters(running, alice, scope, allowed):
    _, secret = make_token(alice, scope)
    assert publishing.authorize_bearer(secret, running.external_name) == (str(alice.pk) if allowed else None)


@pytest.mark.parametrize("username", ["bob", "charlie", "olga"])
def test_tokens_of_another_user_cannot_enter(running, request, username):
    """The token identifies the user; the view decides access."""
    user = request.getfixturevalue(username)
    _, secret = make_token(user)
    assert publishing.authorize_bearer(secret, running.external_name) == str(user.pk)
    assert str(user.pk) not in publishing.view_of(running).user_ids


@pytest.mark.parametrize("secret", ["", "x", "berth_x"])
def test_other_secrets_do_not_enter(running, secret):
    assert publishing.authorize_bearer(secret, running.external_name) is None
    assert (
        publishing.authorize_bearer(app_token(running.pk, running.generation), running.external_name) is None
    )


def entry(workspace: Workspace, secret: str, **fields: str) -> Entry:
    said = {"address": "192.0.2.7", "user_agent": "Nightly/1.0", "request_id": "job-00042", **fields}
    return Entry(token=secret, external_name=workspace.external_name, **said)


def test_entry_by_token_is_audited(running, alice):
    token, secret = make_token(alice, "workspaces:connect")
    assert publishing.record_entry(entry(running, secret))
    [opened] = Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED)
    assert (opened.actor, opened.workspace_id, opened.team_id) == (alice, running.pk, running.team_id)
    assert (opened.address, opened.user_agent) == ("192.0.2.7", "Nightly/1.0")
    assert (opened.request_id, opened.token) == ("job-00042", token.prefix)
    assert opened.data == {"token": str(token.pk)}
    assert secret not in str(opened.__dict__)
    # The next actions of this thread belong to no request.
    assert request_context.current() == request_context.RequestContext()


def test_entry_of_a_service_account_is_recorded_under_its_name(make, settle, team, alice, local_pool, sent):
    account = service_accounts.create(actor=alice, team=team, name="ci")
    workspace = make(account)
    run_until_ready(sent, workspace, ENDPOINT)
    assert publishing.record_entry(entry(workspace, make_token(account)[1]))
    [opened] = Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED)
    assert opened.actor_label == "svc-ci"


@pytest.mark.parametrize("said", ["", "x", "a b\nc" * 5, "x" * 65, "é" * 10])
def test_invalid_request_id_is_replaced(running, alice, said):
    assert publishing.record_entry(entry(running, make_token(alice)[1], request_id=said, address="nonsense"))
    [opened] = Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED)
    assert len(opened.request_id) == 32 and opened.request_id != said
    assert opened.address is None


def test_entry_without_permission_is_not_recorded(running, alice, bob):
    token, secret = make_token(alice)
    assert not publishing.record_entry(entry(running, make_token(bob)[1]))
    assert not publishing.record_entry(entry(running, make_token(alice, "workspaces:read")[1]))
    ApiToken.objects.filter(pk=token.pk).update(revoked_at=timezone.now())
    assert not publishing.record_entry(entry(running, secret))
    assert not Event.objects.filter(kind=AuditKind.WORKSPACE_OPENED).exists()


def test_token_of_an_auditor_cannot_enter(running, alice):
    """REST refuses it; the gateway must not accept a token from before the role."""
    _, secret = make_token(alice)
    User.objects.filter(pk=alice.pk).update(is_auditor=True)
    assert publishing.authorize_bearer(secret, running.external_name) is None
    assert not publishing.record_entry(entry(running, secret))


def test_missing_redis_keys_are_read_from_the_database(running, alice, django_assert_num_queries):
    # The workspace and its machine.
    with django_assert_num_queries(2):
        view = publishing.resolve(running.external_name)
    assert view == publishing.view_of(running)
    assert publishing.resolve("ws-" + "0" * 32) is None
