"""Delivery of secrets to a start: selection, authentication, and attacks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from portal.catalog.models import Template
from portal.common.errors import InvalidInput
from portal.common.events.models import Event
from portal.fleet.machines import door
from portal.people.accounts.models import Membership, Role
from portal.workspaces import secret_delivery
from portal.workspaces import services as workspaces
from portal.workspaces.dispatch import spec_of
from portal.workspaces.lifecycle import State
from portal.workspaces.models import StartSecrets, Workspace
from portal.workspaces.secrets import effective, services
from portal.workspaces.secrets.codes import SecretCode
from portal.workspaces.secrets.models import Secret
from portal.workspaces.tokens import agent_token
from tests import sites
from tests.api.conftest import api as api  # a fixture
from tests.api.conftest import problem
from tests.factories import MachineFactory, MembershipFactory, TeamFactory
from tests.workspaces.helpers import answer, endpoint_of, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
VALUE = "planted-value-0f8a7c"


def put(actor: Any, holder: Any, name: str, value: str = VALUE, **more: Any) -> Secret:
    return services.put_secret(actor=actor, holder=holder, name=name, value=value, **more).secret


@pytest.fixture
def template(catalog: None) -> Template:
    return Template.objects.get(slug="jupyterlab")


@pytest.fixture
def started(clock, make, bob, local_pool) -> Workspace:
    """A starting workspace of bob with one of his secrets."""
    put(bob, bob, "TOKEN_A")
    return make(bob, secrets=["TOKEN_A"])


def ask(workspace: Workspace, *, generation: int | None = None, token: str = "", **headers: str) -> Any:
    token = token or agent_token(workspace.pk, workspace.generation if generation is None else generation)
    client = Client(headers={"Authorization": f"Bearer {token}", **headers})
    return client.post("/agent/v1/secrets", b"{}", content_type="application/json")


def delivered_secrets(response: Any) -> dict[str, tuple[str, str]]:
    assert response.status_code == 200, response.content
    return {secret["name"]: (secret["kind"], secret["value"]) for secret in response.json()["secrets"]}


# --- selection ------------------------------------------------------------------------------------


def test_user_secret_overrides_team_secret_and_that_the_template_secret(
    clock, make, local_pool, team, template, alice, bob, olga
):
    for name in ("A", "B", "C", "D"):
        put(olga, template, name, "of the template")
    for name in ("A", "B", "E"):
        put(alice, team, name, "of the team", everywhere=True)
    put(alice, team, "F", "of the team")
    put(alice, team, "G", "of the team")
    put(bob, bob, "A", "of bob", everywhere=True)
    put(bob, bob, "C", "of bob")
    put(bob, bob, "D", "of bob")
    put(alice, alice, "H", "of alice", everywhere=True)
    workspace = make(bob, secrets=["C", "F"])
    found = {name: value for name, (_kind, value) in delivered_secrets(ask(workspace)).items()}
    assert found == {
        "A": "of bob", "B": "of the team", "C": "of bob", "D": "of the template",
        "E": "of the team", "F": "of the team",
    }  # fmt: skip


def test_unknown_secret_name_is_refused(make, alice, bob, team, local_pool):
    put(alice, alice, "ALICES")
    with pytest.raises(InvalidInput) as refused:
        make(bob, secrets=["NONE", "ALICES"])
    assert refused.value.reason.code is SecretCode.UNKNOWN_NAMED
    assert refused.value.reason.params == {"names": ["ALICES", "NONE"]}
    assert "secrets" in refused.value.field_errors
    assert not Workspace.objects.exists()


def test_secrets_of_another_team_are_not_delivered(make, alice, bob, team, local_pool):
    other = TeamFactory()
    for role, user in ((Role.OWNER, alice), (Role.MEMBER, bob)):
        MembershipFactory(team=other, user=user, role=role)
    put(alice, other, "OTHERS", everywhere=True)
    with pytest.raises(InvalidInput):
        make(bob, secrets=["OTHERS"])
    assert delivered_secrets(ask(make(bob))) == {}


def test_template_secrets_of_another_team_are_not_delivered(make, alice, bob, team, template, local_pool):
    # An owner of another team adds a secret of the same name to a template of theirs: a separate row.
    other = TeamFactory()
    template.team = team
    template.save()
    put(alice, team, "SHARED", "of vision")
    put(alice, template, "OWN", "of the template")
    assert "SHARED" not in delivered_secrets(ask(make(bob)))
    owner = MembershipFactory(team=other, role=Role.OWNER).user
    assert effective.available_secrets(owner, other, None).by_name == {}


def test_total_secret_size_is_limited(make, bob, team, local_pool, monkeypatch):
    monkeypatch.setattr(effective, "MAX_TOTAL_BYTES", 30)
    put(bob, bob, "A"), put(bob, bob, "B")
    make(bob, name="one", secrets=["A"])
    with pytest.raises(InvalidInput) as refused:
        make(bob, name="two", secrets=["A", "B"])
    assert refused.value.reason.code is SecretCode.TOO_LARGE_TOGETHER
    with pytest.raises(InvalidInput):
        effective.require_known(bob, team, Template.objects.first(), [f"X{n}" for n in range(51)])


def test_secrets_of_a_workspace_over_rest(api, bob, team, local_pool, clock):
    put(bob, bob, "TOKEN_A")
    order = {"template": "jupyterlab", "flavor": "cpu-small", "secrets": ["TOKEN_A"]}
    made = api(bob).post("workspaces", order, **{"Idempotency-Key": "k"})
    assert made.status_code == 201 and made.json()["secrets"] == ["TOKEN_A"]
    assert api(bob).get("workspaces").json()["results"][0]["secrets"] == ["TOKEN_A"]
    other = {**order, "secrets": []}
    problem(api(bob).post("workspaces", other, **{"Idempotency-Key": "k"}), 409, "idempotency_key_reused")
    refused = problem(api(bob).post("workspaces", {**order, "secrets": ["NONE"]}), 400, "invalid")
    assert refused["reason"]["code"] == "unknown_secrets_named" and "secrets" in refused["errors"]


# --- messages and stored data ---------------------------------------------------------------------


def test_secret_values_are_not_in_messages_or_rows(sent, started):
    (message,) = sent.messages
    assert message.command.spec.secrets is True
    assert VALUE not in str(message.kwargs) and VALUE not in json.dumps(message.command.spec.digest())
    delivered_secrets(ask(started))
    row = StartSecrets.objects.get()
    assert [each["name"] for each in row.given] == ["TOKEN_A"] and VALUE not in str(row.given)
    entry = Event.objects.get(kind="workspace.secrets_given")
    assert VALUE not in f"{entry.message}{entry.data}" and entry.workspace_id == started.pk
    secret = Secret.objects.get()
    assert secret.delivered_to == started.owner and secret.delivered_at is not None


def test_no_request_without_secrets(sent, clock, make, bob, local_pool):
    make(bob)
    (message,) = sent.messages
    assert message.command.spec.secrets is False


def test_spec_hash_does_not_depend_on_secrets(sent, started, bob):
    before = spec_of(started).digest()
    Secret.objects.all().delete()
    assert spec_of(started).secrets is False and spec_of(started).digest() == before


# --- authentication -------------------------------------------------------------------------------


def test_secrets_can_be_requested_again_until_the_app_starts(started):
    assert delivered_secrets(ask(started)) == delivered_secrets(ask(started)) == {"TOKEN_A": ("env", VALUE)}
    assert Event.objects.filter(kind="workspace.secrets_given").count() == 1
    launched = Client(headers={"Authorization": f"Bearer {agent_token(started.pk, started.generation)}"})
    body = json.dumps({"endpoint": endpoint_of(started)}).encode()
    assert launched.post("/agent/v1/launched", body, content_type="application/json").status_code == 204
    assert ask(started).status_code == 410


def test_response_is_not_cached(started):
    assert ask(started)["Cache-Control"] == "no-store"


def test_secrets_are_delivered_only_while_starting(sent, started, bob):
    generation = started.generation
    run_until_ready(sent, started)
    assert ask(started).status_code == 410
    workspaces.stop(actor=bob, workspace_id=started.pk)
    assert ask(started).status_code == 410
    assert answer(sent, "stop", "stopped")
    started.refresh_from_db()
    assert started.state == State.STOPPED and ask(started).status_code == 410
    workspaces.start(actor=bob, workspace_id=started.pk)
    started.refresh_from_db()
    assert started.generation == generation + 1
    assert ask(started, generation=generation).status_code == 410
    assert VALUE in str(delivered_secrets(ask(started)))
    workspaces.delete(actor=bob, workspace_id=started.pk)
    assert ask(started).status_code == 410


def test_token_of_another_workspace_gets_its_own_secrets(started, make, alice):
    other = make(alice)
    assert delivered_secrets(ask(other)) == {}
    forged = agent_token(started.pk, started.generation).split(".")[:2]
    forged.append(agent_token(other.pk, other.generation).rsplit(".", 1)[1])
    assert ask(started, token=".".join(forged)).status_code == 401
    assert Client().post("/agent/v1/secrets", b"{}", content_type="application/json").status_code == 401
    assert Client().get("/agent/v1/secrets").status_code == 405


def test_node_gets_only_secrets_of_its_workspaces(started, settings):
    """An attacker with the certificate of another machine who has read the token in a queue."""
    through = {door.DOOR_HEADER: door.token_of(settings.BERTH_GATEWAY_SECRET)}
    node = started.allocations.get().node
    MachineFactory(name="gpu-other", pool=started.pool)
    assert ask(started, **through, **{door.NODE_HEADER: "gpu-other"}).status_code == 410
    MachineFactory(name=node.name, pool=started.pool)
    assert ask(started, **through, **{door.NODE_HEADER: "gpu-other"}).status_code == 410
    assert ask(started).status_code == 410  # bypassing the front door
    assert VALUE in str(delivered_secrets(ask(started, **through, **{door.NODE_HEADER: node.name})))


def test_former_members_and_deactivated_users_get_no_team_secrets(started, team, alice, bob):
    put(alice, team, "TEAMS", everywhere=True)
    assert set(delivered_secrets(ask(started))) == {"TOKEN_A", "TEAMS"}
    Membership.objects.filter(user=bob).update(role=Role.VIEWER)
    assert set(delivered_secrets(ask(started))) == {"TOKEN_A"}
    type(bob).objects.filter(pk=bob.pk).update(is_active=False)
    assert ask(started).status_code == 410


def test_concurrently_deleted_secret_is_not_delivered(started, bob):
    services.delete(actor=bob, secret=Secret.objects.get())
    assert delivered_secrets(ask(started)) == {}


def test_undecryptable_secret_is_reported(started, settings):
    settings.SECRET_KEY_FALLBACKS = []
    Secret.objects.update(sealed="gAAAAA-what-no-key-opens")
    refused = ask(started)
    assert refused.status_code == 409 and refused.json()["code"] == "secret_unreadable"


# --- workspace page -------------------------------------------------------------------------------


def test_changed_secret_applies_from_the_next_start(sent, started, bob):
    delivered_secrets(ask(started))
    run_until_ready(sent, started)
    note = secret_delivery.note_of(started)
    assert note is not None and ([row.name for row in note.rows], note.changed) == (["TOKEN_A"], False)
    put(bob, bob, "TOKEN_A", "another value")
    note = secret_delivery.note_of(started)
    assert note is not None and note.changed
    services.delete(actor=bob, secret=Secret.objects.get())
    note = secret_delivery.note_of(started)
    assert note is not None and (note.changed, note.missing) == (True, ["TOKEN_A"])


def test_workspace_without_secrets_has_no_note(clock, make, bob, local_pool):
    assert secret_delivery.note_of(make(bob)) is None
