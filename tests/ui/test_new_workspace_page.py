"""The form for a new workspace."""

from __future__ import annotations

import re
from typing import Any

import pytest

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.models import Workspace
from tests.factories import local_pool_with, node_info
from tests.ui.test_pages import Browse, Make, text_of


def test_new_form_preselects_a_possible_choice(
    alice: User, team: Team, local_pool: Pool, as_user: Browse
) -> None:
    body = as_user(alice).get("/workspaces/new/").content.decode()
    assert re.search(r'value="jupyterlab" checked', body)
    assert re.search(r'value="cpu-small" checked', body)
    assert 'value="jupyterlab"' in body[body.index('id="name"') :][:120]
    assert "Starts now" in body


def test_unavailable_choice_shows_the_reason(alice: User, team: Team, catalog: None, as_user: Browse) -> None:
    local_pool_with(node_info(programs=("jupyter-lab", "marimo"), memory_mib=2048))
    page = as_user(alice).get("/workspaces/new/")
    words = text_of(page)
    assert "code-server is not installed on any node." in words
    assert "An operator builds the environment “VS Code”" in words
    assert re.search(r'value="vscode" disabled', page.content.decode())
    assert "Not possible No node is large enough" in words


def test_form_updates_verdicts_and_keeps_a_typed_name(
    alice: User, team: Team, local_pool: Pool, as_user: Browse
) -> None:
    client = as_user(alice)
    htmx = {"HX-Request": "true", "HX-Target": "choice"}
    query = {"template": "marimo", "flavor": "cpu-large", "team": "vision", "suggested": "jupyterlab"}
    followed = client.get("/workspaces/new/", query | {"name": "jupyterlab"}, headers=htmx).content.decode()
    assert "<html" not in followed
    assert 'id="summary" hx-swap-oob' in followed
    assert 'value="marimo"' in followed[followed.index('id="name-box"') :]
    kept = client.get("/workspaces/new/", query | {"name": "my-own"}, headers=htmx).content.decode()
    assert 'id="name-box"' not in kept


def test_form_keeps_the_checkpoint_option(
    alice: User, team: Team, local_pool: Pool, catalog: None, as_user: Browse
) -> None:
    chosen = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision"}
    client, said = as_user(alice), {"checkpointed": "on"}
    refused = client.post("/workspaces/new/", chosen | said | {"hours": "soon"})
    assert 'name="checkpointed" checked' in refused.content.decode()
    assert client.post("/workspaces/new/", chosen | said | {"name": "said"}).status_code == 302
    assert client.post("/workspaces/new/", chosen | {"name": "unsaid"}).status_code == 302
    assert dict(Workspace.objects.values_list("name", "checkpointed")) == {"said": True, "unsaid": None}


def test_collapsed_options_show_values_and_open_on_errors(
    alice: User, team: Team, local_pool: Pool, catalog: None, as_user: Browse
) -> None:
    def options(page: Any) -> tuple[bool, str]:
        box = re.search(
            r'<details[^>]*id="options"( open)?>.*?id="options-set">(.*?)<', page.content.decode(), re.DOTALL
        )
        assert box is not None
        return bool(box[1]), box[2]

    client = as_user(alice)
    assert options(client.get("/workspaces/new/")) == (False, "Defaults")
    chosen = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision"}
    given = chosen | {"hours": "8", "git_url_set": "1", "checkpointed": "on", "second": "cpu-large"}
    words = "4 set: stops after 8 h, or Large CPU, a Git repository, …"
    assert options(client.get("/workspaces/new/", given)) == (False, words)
    refused = client.post("/workspaces/new/", chosen | {"hours": "soon"})
    assert options(refused) == (True, "Defaults")
    assert re.search(r'id="hours"[^>]*autofocus', refused.content.decode())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Not A Name", "Use lower-case letters"),
        ("x" * 61, "at most 60 characters"),
        ("taken", "already have"),
    ],
)
def test_refused_form_shows_the_problem_and_keeps_the_choice(
    alice: User, team: Team, local_pool: Pool, make: Make, as_user: Browse, name: str, sentence: str
) -> None:
    make(alice, "cpu-small", name="taken")
    page = as_user(alice).post(
        "/workspaces/new/", {"template": "marimo", "flavor": "cpu-large", "team": "vision", "name": name}
    )
    body = page.content.decode()
    assert page.status_code in {400, 409}
    assert sentence in text_of(page)
    assert re.search(r'value="marimo" checked', body)
    assert re.search(r'value="cpu-large" checked', body)
    assert Workspace.objects.count() == 1


def test_user_without_team_sees_the_next_step(as_user: Browse, olga: User, local_pool: Pool) -> None:
    assert "You are not in a team yet" in text_of(as_user(olga).get("/workspaces/new/"))
