"""A secret deleted while a start requests it, on either database."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client

from portal.workspaces.models import StartSecrets
from portal.workspaces.secrets import effective, services
from portal.workspaces.secrets.models import Secret
from portal.workspaces.tokens import agent_token
from tests.races import Meanwhile, at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]
VALUE = "planted-value-5e1b9d"


@pytest.fixture
def started(make, bob, local_pool, clock):
    for name in ("TOKEN_A", "TOKEN_B"):
        services.put_secret(actor=bob, holder=bob, name=name, value=f"{VALUE}-{name}")
    return make(bob, secrets=["TOKEN_A", "TOKEN_B"])


def ask(workspace) -> dict[str, str]:
    token = agent_token(workspace.pk, workspace.generation)
    answer = Client(headers={"Authorization": f"Bearer {token}"}).post(
        "/agent/v1/secrets", b"{}", content_type="application/json"
    )
    assert answer.status_code == 200, answer.content
    return {secret["name"]: secret["value"] for secret in json.loads(answer.content)["secrets"]}


def delete(bob, name: str) -> None:
    services.delete(actor=bob, secret=Secret.objects.get(user=bob, name=name))


def test_deletion_during_a_start_is_atomic(started, bob, monkeypatch):
    """Deleted after its lookup: the start gets it completely or not at all, and reports which."""
    meanwhile = Meanwhile(monkeypatch, effective, "values_of", lambda: delete(bob, "TOKEN_A"))
    given = ask(started)
    assert meanwhile.outcome() is None
    # SQLite has one writer, so the deletion waits for the start.
    left = ("TOKEN_A", "TOKEN_B") if connection.vendor == "sqlite" else ("TOKEN_B",)
    assert given == {name: f"{VALUE}-{name}" for name in left}
    assert [each["name"] for each in StartSecrets.objects.get().given] == sorted(given)
    # Requested again, as after a lost response, it is missing; the other one is delivered.
    assert ask(started) == {"TOKEN_B": f"{VALUE}-TOKEN_B"}
    assert [each["name"] for each in StartSecrets.objects.get().given] == ["TOKEN_B"]


def test_starts_and_deletions_at_once_end_consistently(started, bob):
    outcomes = at_once([lambda: ask(started), lambda: delete(bob, "TOKEN_A"), lambda: ask(started)])
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    for given in (outcomes[0], outcomes[2]):
        assert given["TOKEN_B"] == f"{VALUE}-TOKEN_B"
        assert given.get("TOKEN_A") in (None, f"{VALUE}-TOKEN_A")
    assert set(ask(started)) == {"TOKEN_B"}
