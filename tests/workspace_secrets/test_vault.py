"""Vault secrets read from a real server: delivery, failures, and permitted paths."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.catalog.models import Template
from portal.common.errors import InvalidInput
from portal.common.events.models import Event
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import next_action_of
from portal.people.accounts.models import User
from portal.site_file import applying, exporting
from portal.workspaces import checkouts, secret_delivery
from portal.workspaces import services as workspaces
from portal.workspaces.models import StartSecrets, Workspace
from portal.workspaces.secrets import places, services, vault
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Secret
from provisioning.types import ObservedState
from tests.api.conftest import api as api  # a fixture
from tests.api.conftest import problem
from tests.vault_server import VaultServer
from tests.vault_server import vault_server as vault_server
from tests.workspace_secrets.test_delivery import ask, delivered_secrets
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = pytest.mark.django_db
VALUE = "planted-in-vault-51ac"


@pytest.fixture
def server(vault_server: VaultServer, settings: Any, monkeypatch: Any) -> VaultServer:
    """A server with one value of bob, read by the portal with its AppRole."""
    for name, value in vault_server.settings().items():
        setattr(settings, name, value)
    monkeypatch.setattr(vault, "REST_S", 0.0)
    vault.forget()
    vault_server.write("berth/users/bob/wandb", api_key=VALUE, number=7, empty="", nul="a\0b")
    return vault_server


def put(actor: Any, holder: Any, name: str = "TOKEN_A", **more: Any) -> Secret:
    place = {"vault_path": "berth/users/bob/wandb", "vault_key": "api_key"}
    return services.put_secret(actor=actor, holder=holder, name=name, **{**place, **more}).secret


@pytest.fixture
def started(server: VaultServer, clock: Any, make: Any, bob: User, local_pool: Any) -> Workspace:
    put(bob, bob)
    return make(bob, secrets=["TOKEN_A"])


def refused(response: Any, status: int, code: SecretCode) -> None:
    assert (response.status_code, response.json()["code"]) == (status, code.value), response.content
    assert VALUE not in response.content.decode()


# --- start ----------------------------------------------------------------------------------------


def test_start_gets_the_current_vault_secret_and_it_is_not_stored(server, started, bob):
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}
    server.write("berth/users/bob/wandb", api_key=f"{VALUE}-2")
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", f"{VALUE}-2")}
    row = Secret.objects.get()
    assert (row.sealed, row.size_bytes, row.delivered_to) == ("", 0, bob)
    kept = StartSecrets.objects.get()
    version = kept.given[0]["vault_version"]
    assert version > 1 and VALUE not in str(kept.given)
    assert not [event for event in Event.objects.all() if VALUE in f"{event.message}{event.data}"]
    assert {"vault_path": "berth/users/bob/wandb", "vault_key": "api_key"}.items() <= Event.objects.get(
        kind="secret.created"
    ).data.items()


def test_page_shows_no_change_for_vault_secrets(sent, started, bob):
    delivered_secrets(ask(started))
    run_until_ready(sent, started)
    note = secret_delivery.note_of(started)
    assert note is not None and not note.changed
    put(bob, bob, vault_key="number")
    note = secret_delivery.note_of(started)
    assert note is not None and note.changed


def test_vault_token_file_is_read_each_time(server, started, settings):
    settings.BERTH_VAULT_TOKEN_FILE = str(server.token_file)
    settings.BERTH_VAULT_ROLE_ID = ""
    server.token_file.write_text("s.of-another-vault")
    refused(ask(started), 409, SecretCode.VAULT_LOGIN_REFUSED)
    server.token_file.write_text(server.new_token() + "\n")
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}
    server.token_file.unlink()
    refused(ask(started), 409, SecretCode.VAULT_LOGIN_REFUSED)


def test_revoked_vault_token_is_renewed(server, started):
    assert delivered_secrets(ask(started))
    token = vault._kept.token
    server.root.auth.token.revoke(token)
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}
    assert vault._kept.token != token


def test_git_credential_can_be_a_vault_secret(server, clock, make, bob, local_pool, settings):
    put(bob, bob)
    workspace = make(bob, git={"url": "https://git.example.org/a/b", "ref": "", "secret": "TOKEN_A"})
    (opened,) = ask(workspace).json()["git"]
    assert opened["password"] == VALUE
    # A repository does not make the start fail.
    put(bob, bob, vault_key="none")
    (closed,) = ask(workspace).json()["git"]
    assert closed == {"what": "repository", "problem": "no_secret"}
    assert checkouts.secrets_for(workspace)


# --- failures -------------------------------------------------------------------------------------


def test_secret_error_ends_the_start_with_the_reason(server, started, bob):
    for place, code in (
        ({"vault_key": "none"}, SecretCode.VAULT_NO_SUCH_KEY),
        ({"vault_key": "number"}, SecretCode.VAULT_NOT_A_VALUE),
        ({"vault_key": "empty"}, SecretCode.VAULT_NOT_A_VALUE),
        ({"vault_key": "nul"}, SecretCode.VAULT_NOT_A_VALUE),
        ({"vault_path": "berth/users/bob/none"}, SecretCode.VAULT_NO_SUCH_PATH),
    ):
        put(bob, bob, **place)
        refused(ask(started), 409, code)
    put(bob, bob)
    server.root.secrets.kv.v2.delete_latest_version_of_secret("berth/users/bob/wandb")
    refused(ask(started), 409, SecretCode.VAULT_NO_SUCH_PATH)


def test_transient_failure_is_retried(server, started, settings):
    server.seal()
    try:
        refused(ask(started), 503, SecretCode.VAULT_SEALED)
    finally:
        server.unseal()
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}
    assert StartSecrets.objects.get().problem == {}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings.BERTH_VAULT_ADDR = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        refused(ask(started), 503, SecretCode.VAULT_AWAY)


def test_start_waiting_for_vault_gets_a_final_notice(sent, server, started, bob):
    delivered_secrets(ask(started))
    run_until_ready(sent, started)
    secret_delivery.close(started.pk, started.generation)
    workspaces.stop(actor=bob, workspace_id=started.pk)
    assert answer(sent, "stop", "stopped")
    workspaces.start(actor=bob, workspace_id=started.pk)
    generation = started.generation
    started.refresh_from_db()
    server.seal()
    try:
        refused(ask(started), 503, SecretCode.VAULT_SEALED)
        # The agent of the previous start does not report for this one.
        assert ask(started, generation=generation).status_code == 410
    finally:
        server.unseal()
    kept = StartSecrets.objects.get()
    assert (kept.generation, kept.given, kept.closed) == (started.generation, [], False)
    assert delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}


def test_second_start_does_not_wait_for_an_unavailable_vault_secret(server, started, settings, monkeypatch):
    monkeypatch.setattr(vault, "REST_S", 600.0)
    server.seal()
    try:
        refused(ask(started), 503, SecretCode.VAULT_SEALED)
    finally:
        server.unseal()
    refused(ask(started), 503, SecretCode.VAULT_SEALED)
    vault.forget()
    assert delivered_secrets(ask(started))


def test_vault_permission_errors_are_distinguished(server, started, settings, bob):
    settings.BERTH_VAULT_USER_PATHS = ["berth/users/{user}", "berth/forbidden/{user}", "elsewhere/{user}"]
    put(bob, bob, vault_path="berth/forbidden/bob/x")
    refused(ask(started), 409, SecretCode.VAULT_FORBIDDEN)
    put(bob, bob)
    server.secret_id_file.write_text("wrong")
    vault.forget()
    refused(ask(started), 409, SecretCode.VAULT_LOGIN_REFUSED)
    server.new_secret_id()
    assert delivered_secrets(ask(started))
    settings.BERTH_VAULT_ADDR = server.address.replace("http:", "https:")
    refused(ask(started), 409, SecretCode.VAULT_CERTIFICATE)
    settings.BERTH_VAULT_ADDR = ""
    refused(ask(started), 409, SecretCode.VAULT_NOT_CONFIGURED)


def test_failed_start_shows_the_secret_problem(sent, server, started, bob):
    put(bob, bob, vault_key="none")
    refused(ask(started), 409, SecretCode.VAULT_NO_SUCH_KEY)
    assert answer(sent, "start", ObservedState.FAILED.value, code="secrets_refused", message="cannot be had")
    assert answer(sent, "delete", "absent")
    started.refresh_from_db()
    reason = Reason.from_json(started.status.reason)
    assert (started.state, reason.code) == ("failed", SecretCode.VAULT_NO_SUCH_KEY)
    assert next_action_of(reason)


# --- permitted paths ------------------------------------------------------------------------------


@pytest.fixture
def template(catalog: None) -> Template:
    return Template.objects.get(slug="jupyterlab")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("berth/users/alice/wandb", SecretCode.VAULT_PATH_NOT_ALLOWED),
        ("berth/users/bobby/x", SecretCode.VAULT_PATH_NOT_ALLOWED),
        ("berth/teams/vision/x", SecretCode.VAULT_PATH_NOT_ALLOWED),
        ("berth/users/bob/../alice/wandb", SecretCode.VAULT_PATH_INVALID),
        ("berth/users/bob/./x", SecretCode.VAULT_PATH_INVALID),
        ("berth/users/bob//x", SecretCode.VAULT_PATH_INVALID),
        ("berth/users/bob/%2e%2e/alice", SecretCode.VAULT_PATH_INVALID),
        ("berth/users/bob/x?version=1", SecretCode.VAULT_PATH_INVALID),
        ("berth/users/bob/x\n", None),
        ("/berth/users/bob/x/", None),
    ],
)
def test_user_can_use_vault_secret_paths_below_their_own(server, bob, path, code):
    if code is None:
        assert put(bob, bob, vault_path=path).vault_path == "berth/users/bob/x"
        return
    with pytest.raises(InvalidInput) as error:
        put(bob, bob, vault_path=path)
    assert [each.code for each in error.value.extra["errors"]["vault_path"]] == [code]
    assert not Secret.objects.exists()


def test_each_holder_has_its_own_vault_secret_paths(server, settings, alice, olga, team, template):
    assert put(alice, team, vault_path="berth/teams/vision/a/b").in_vault
    assert put(olga, template, vault_path="berth/templates/jupyterlab").in_vault
    for actor, holder in ((alice, team), (olga, template)):
        with pytest.raises(InvalidInput):
            put(actor, holder, "OTHER", vault_path="berth/users/bob/wandb")
    alice.username = ".."
    assert services.folders_of(alice) == []
    settings.BERTH_VAULT_USER_PATHS = ["/", "a/../b"]
    alice.username = "alice"
    assert services.folders_of(alice) == [] and not places.is_below("", services.folders_of(alice))


def test_vault_secret_path_no_longer_allowed_is_not_read(server, started, settings, monkeypatch):
    asked = []
    monkeypatch.setattr(vault, "_read", lambda _session, path: asked.append(path))
    settings.BERTH_VAULT_USER_PATHS = ["elsewhere/{user}"]
    refused(ask(started), 409, SecretCode.VAULT_PATH_LOST)
    assert asked == []


def test_secret_row_has_a_value_or_a_vault_path(server, bob):
    row = put(bob, bob)
    for wrong in ({"sealed": "x"}, {"vault_path": ""}, {"vault_key": ""}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Secret.objects.filter(pk=row.pk).update(**wrong)
    with pytest.raises(InvalidInput) as error:
        put(bob, bob, value="x")
    assert error.value.extra["errors"]["value"][0].code is SecretCode.VALUE_AND_VAULT
    # Switching between Vault and stored values leaves nothing of the previous one.
    row = services.put_secret(actor=bob, holder=bob, name="TOKEN_A", value="here").secret
    assert (row.vault_path, row.vault_key, row.size_bytes, row.version) == ("", "", 4, 2) and row.sealed
    assert put(bob, bob).sealed == ""


# --- pages and REST -------------------------------------------------------------------------------


def test_vault_secrets_over_rest(server, api, bob, settings):
    place = {"vault_path": "berth/users/bob/wandb", "vault_key": "api_key"}
    made = api(bob).put("me/secrets/TOKEN_A", place)
    assert made.status_code == 201 and place.items() <= made.json().items()
    told_wrong = problem(
        api(bob).put("me/secrets/TOKEN_B", {"vault_path": "x", "vault_key": ""}), 400, "invalid"
    )
    assert "vault_key" in told_wrong["errors"]
    wrong = problem(api(bob).put("me/secrets/TOKEN_B", {**place, "vault_path": "x"}), 400, "invalid")
    assert "berth/users/bob" in wrong["errors"]["vault_path"][0]
    assert "value" in problem(api(bob).put("me/secrets/TOKEN_B", {}), 400, "invalid")["errors"]
    settings.BERTH_VAULT_ADDR = ""
    assert "vault_path" in problem(api(bob).put("me/secrets/TOKEN_B", place), 400, "invalid")["errors"]


def test_vault_secrets_on_the_pages(server, as_user, bob, settings):
    browser = as_user(bob)
    typed = {"name": "TOKEN_A", "kind": "env", "value": "", "vault_path": "berth/users/bob/wandb"}
    wrong = browser.post("/account/secrets/", typed)
    assert wrong.status_code == 400 and b"A Vault key must have" in wrong.content
    assert browser.post("/account/secrets/", {**typed, "vault_key": "api_key"}).status_code == 302
    row = Secret.objects.get()
    assert (row.vault_path, row.vault_key) == ("berth/users/bob/wandb", "api_key")
    url = f"/secrets/{row.pk}/"
    for page in (browser.get("/account/secrets/"), browser.get(url)):
        assert b"berth/users/bob/wandb" in page.content
    kept = {"vault_path": row.vault_path, "vault_key": row.vault_key}
    assert browser.post(url, {**kept, "value": "", "description": "d"}).status_code == 302
    row.refresh_from_db()
    assert (row.version, row.description) == (1, "d")
    assert browser.post(url, {**kept, "vault_key": "other", "value": ""}).status_code == 302
    row.refresh_from_db()
    assert (row.version, row.vault_key) == (2, "other")
    kept["vault_key"] = "other"
    assert browser.post(url, {**kept, "value": "typed"}).status_code == 302
    row.refresh_from_db()
    assert (row.version, row.in_vault) == (3, False)
    settings.BERTH_VAULT_ADDR = ""
    assert b"Vault" not in browser.get("/account/secrets/").content


def test_site_file_has_vault_paths_of_teams_and_templates_without_secret_values(
    server, ada, alice, team, template
):
    put(alice, team, vault_path="berth/teams/vision/a")
    services.put_secret(actor=alice, holder=team, name="HERE", value=VALUE)
    put(alice, alice, vault_path="berth/users/alice/own")
    given = {"path": "berth/templates/jupyterlab/hub", "key": "k", "kind": "file"}
    document = exporting.current()
    assert document["teams"]["vision"]["vault_secrets"]["TOKEN_A"]["path"] == "berth/teams/vision/a"
    text = exporting.as_yaml(document)
    assert VALUE not in text and "HERE" not in text and "users/alice" not in text
    assert applying.compare(actor=ada, text=text) == []
    site_document = {
        "berth": 1,
        "teams": {"vision": {"vault_secrets": {}}},
        "templates": {"jupyterlab": {"vault_secrets": {"HUB": given}}},
    }
    applying.apply(actor=ada, text=json.dumps(site_document))
    assert applying.apply(actor=ada, text=json.dumps(site_document)) == []
    assert set(Secret.objects.filter(user=None).values_list("name", flat=True)) == {"HERE", "HUB"}
    site_document["templates"]["jupyterlab"]["vault_secrets"]["HUB"]["path"] = "berth/users/alice/own"
    with pytest.raises(InvalidInput) as error:
        applying.apply(actor=ada, text=json.dumps(site_document))
    assert "berth/templates/jupyterlab" in str(error.value.reason.params["reason"])
