"""Derived secrets differ per start and require the key."""

from __future__ import annotations

import uuid

import pytest

from portal.workspaces.tokens import agent_token, app_token, check_agent_token

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def test_tokens_differ_by_workspace_generation_and_purpose():
    made = {
        app_token(ONE, 1),
        app_token(ONE, 2),
        app_token(OTHER, 1),
        agent_token(ONE, 1).rsplit(".", 1)[1],
        agent_token(ONE, 2).rsplit(".", 1)[1],
    }
    assert len(made) == 5
    assert all(len(secret) == 64 for secret in made)


def test_tokens_are_deterministic_and_change_with_the_key(settings):
    before = app_token(ONE, 1), agent_token(ONE, 1)
    assert (app_token(ONE, 1), agent_token(ONE, 1)) == before
    settings.SECRET_KEY = "another key of sufficient length, for a test"
    assert app_token(ONE, 1) != before[0]
    assert check_agent_token(before[1]) is None


def test_genuine_token_returns_its_workspace_and_generation():
    assert check_agent_token(agent_token(ONE, 12)) == (ONE, 12)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.1.b",
        f"{ONE}.x.y",
        f"{ONE}.1.",
        f"{ONE}.-1.x",
        f"{ONE}.١.x",
        "\N{SNOWMAN}.1.x",
    ],
)
def test_malformed_token_is_refused(token):
    assert check_agent_token(token) is None


def test_parts_of_two_tokens_cannot_be_combined():
    _, generation, mac = agent_token(ONE, 1).split(".")
    assert check_agent_token(f"{OTHER}.{generation}.{mac}") is None
    assert check_agent_token(f"{ONE}.2.{mac}") is None


def test_repr_of_messages_hides_secrets(make, alice, local_pool, sent):
    workspace = make(alice)
    command = sent.commands[0]
    for secret in (app_token(workspace.pk, 1), agent_token(workspace.pk, 1)):
        assert secret not in repr(command)
        assert secret not in command.spec.digest()
    assert app_token(workspace.pk, 1) in str(sent.messages[0].kwargs)
