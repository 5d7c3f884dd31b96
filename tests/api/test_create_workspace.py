"""POST /api/v1/workspaces"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests.api.conftest import V1, Api, problem
from tests.factories import MembershipFactory, TeamFactory, make_token

BODY = {"name": "trial", "team": "vision", "template": "jupyterlab", "flavor": "cpu-small"}
pytestmark = pytest.mark.django_db


@pytest.fixture
def free_node(team: Any, local_pool: Any) -> None:
    """A team and a node with free capacity."""


def test_create_starts_the_workspace_and_returns_it_in_full(api: Any, bob: Any, free_node: None) -> None:
    response = api(bob).post("workspaces", BODY)

    assert response.status_code == 201
    body = response.json()
    workspace = Workspace.objects.get()
    expected = {
        "id": str(workspace.pk),
        "name": "trial",
        "owner": "bob",
        "state": "provisioning",
        "desired_state": "running",
        "error": None,
        "url": f"http://ws-{workspace.pk.hex}.localhost:8000/lab",
        "portal_url": f"http://localhost:8000/workspaces/{workspace.pk}/",
        "team": "vision",
        "template": "jupyterlab",
        "flavor": "cpu-small",
        "pool": "this-machine",
        "nodes": ["node-1"],
        "devices": [],
        "simulated": False,
    }
    assert {name: body[name] for name in expected} == expected
    assert body["resources"]["cpu_milli"] == workspace.flavor.cpu_milli
    assert [stage["state"] for stage in body["stages"]][:3] == ["done", "done", "done"]
    assert response["Location"] == f"/api/v1/workspaces/{workspace.pk}"
    assert response["ETag"].startswith('W/"')
    assert workspace.owner == bob


def test_team_and_name_are_optional_with_one_team(api: Any, bob: Any, free_node: None) -> None:
    body = {"template": "jupyterlab", "flavor": "cpu-small"}

    first, second = api(bob).post("workspaces", body).json(), api(bob).post("workspaces", body).json()

    assert first["team"] == "vision"
    assert (first["name"], second["name"]) == ("jupyterlab", "jupyterlab-2")


def test_team_is_required_with_two_teams(api: Any, bob: Any, free_node: None) -> None:
    MembershipFactory(team=TeamFactory(slug="audio"), user=bob)

    body = problem(
        api(bob).post("workspaces", {"template": "jupyterlab", "flavor": "cpu-small"}), 400, "invalid"
    )

    assert "team" in body["errors"]
    assert "audio, vision" in body["next_action"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"flavour": "cpu-small"}, "flavour"),
        ({"name": "No Spaces!"}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"team": "robots"}, "team"),
        ({"template": None}, "template"),
        ({"template": "nonesuch"}, "template"),
        ({"flavor": "nonesuch"}, "flavor"),
    ],
)
def test_invalid_input_is_a_field_error(
    api: Any, bob: Any, free_node: None, change: dict[str, Any], field: str
) -> None:
    assert field in problem(api(bob).post("workspaces", {**BODY, **change}), 400, "invalid")["errors"]


def test_outsider_cannot_charge_the_team(api: Any, charlie: Any, free_node: None) -> None:
    problem(api(charlie).post("workspaces", BODY), 400, "invalid")
    assert Workspace.objects.count() == 0


def test_read_only_token_is_refused(api: Any, bob: Any, free_node: None) -> None:
    body = problem(api(bob, "workspaces:read").post("workspaces", BODY), 403, "permission_denied")
    assert "workspaces:write" in body["detail"]


def test_missing_token_is_401(api: Any, free_node: None) -> None:
    response = api(None).post("workspaces", BODY)

    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(("said", "loses"), [(True, False), (False, True), (None, False)])
def test_checkpointed_overrides_the_template_default(
    api: Any, bob: Any, free_node: None, said: Any, loses: bool
) -> None:
    """By default a notebook without accelerator counts as resumable from its files."""
    made = api(bob).post("workspaces", {**BODY, "checkpointed": said})
    assert made.status_code == 201
    assert (made.json()["checkpointed"], made.json()["loses_work"]) == (said, loses)


def test_impossible_request_creates_nothing(api: Any, bob: Any, team: Any, catalog: Any) -> None:
    problem(api(bob).post("workspaces", BODY), 422, "impossible")
    assert Workspace.objects.count() == 0


def test_replay_with_an_idempotency_key_creates_nothing(api: Any, bob: Any, free_node: None) -> None:
    first = api(bob).post("workspaces", BODY, **{"Idempotency-Key": "one"})
    again = api(bob).post("workspaces", BODY, **{"Idempotency-Key": "one"})

    assert (first.status_code, again.status_code) == (201, 201)
    assert "Idempotent-Replayed" not in first
    assert again["Idempotent-Replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    assert Workspace.objects.count() == 1


@pytest.mark.parametrize("key", ["two words", "x" * 121])
def test_any_text_is_a_valid_idempotency_key(api: Any, bob: Any, free_node: None, key: str) -> None:
    first, again = (api(bob).post("workspaces", BODY, **{"Idempotency-Key": key}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"]


def test_empty_idempotency_key_is_ignored(api: Any, bob: Any, free_node: None) -> None:
    body = {**BODY, "name": ""}
    first, again = (api(bob).post("workspaces", body, **{"Idempotency-Key": ""}) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] != first.json()["id"]
    assert again["Idempotency-Key-Ignored"] == "empty"


@pytest.mark.parametrize("name", ["trial", ""])
@pytest.mark.django_db(transaction=True)
def test_simultaneous_requests_at_once_with_one_key_create_one_workspace(
    bob: Any, free_node: None, name: str
) -> None:
    """Threads with their own connections, as web workers have."""
    _, secret = make_token(bob)
    together = threading.Barrier(6)
    answers: list[Any] = []

    def ask() -> None:
        client = Api(Client(headers={"Authorization": f"Bearer {secret}"}))
        together.wait(20)
        try:
            answers.append(client.post("workspaces", {**BODY, "name": name}, **{"Idempotency-Key": "one"}))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [answer.status_code for answer in answers] == [201] * 6, [a.content for a in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer for answer in answers) == 1
    assert Workspace.objects.count() == 1
    workspace = Workspace.objects.get()
    assert workspace.state == State.PROVISIONING
    assert workspace.allocations.count() == 1


@pytest.mark.django_db(transaction=True)
def test_requests_at_once_without_a_name_get_distinct_names(bob: Any, free_node: None) -> None:
    _, secret = make_token(bob)
    together = threading.Barrier(4)
    answers: list[Any] = []

    def ask() -> None:
        client = Client(headers={"Authorization": f"Bearer {secret}"})
        together.wait(20)
        try:
            answers.append(
                client.post(
                    V1 + "workspaces",
                    {"template": "jupyterlab", "flavor": "cpu-small"},
                    content_type="application/json",
                )
            )
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [answer.status_code for answer in answers] == [201] * 4, [a.content for a in answers]
    names = {answer.json()["name"] for answer in answers}
    assert names == {"jupyterlab", "jupyterlab-2", "jupyterlab-3", "jupyterlab-4"}
