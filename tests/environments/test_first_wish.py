"""Curated environments are built when a workspace first needs them."""

from __future__ import annotations

import pytest

from portal.catalog.environments import curated, services
from portal.catalog.environments.models import Environment, EnvironmentBuild
from portal.catalog.models import Template
from portal.catalog.services import prefer_environment
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotPossible, StateConflict
from portal.scheduling import cycle
from portal.workspaces.models import Workspace
from portal.workspaces.problems import stored_message
from tests.environments.helpers import built, failed, only, progress
from tests.factories import local_pool_with, node_info
from tests.races import at_once

pytestmark = pytest.mark.django_db
PROGRAMS = ("python3", "jupyter-lab", "marimo", "code-server")


@pytest.fixture
def vscode(catalog, team, sent, clock) -> Template:
    """A site whose only node has no code-server, and whose VS Code environment is not built."""
    local_pool_with(node_info(programs=("python3", "jupyter-lab", "marimo", "bash")))
    curated.ensure()
    prefer_environment(template="vscode", environment="vscode")
    return Template.objects.get(slug="vscode")


def reason_of(row: Workspace) -> str:
    row.queue_entry.refresh_from_db()
    return stored_message(row.queue_entry.reason)


def test_first_request_builds_the_environment_and_then_starts(vscode, make, bob, sent, as_user):
    page = as_user(bob).get("/workspaces/new/?template=vscode").content.decode()
    assert "VS Code · has not been built yet" in page
    assert "“VS Code” is installed first. Your workspace then starts automatically." in page
    row = make(bob, template="vscode")
    assert row.state == "pending"
    command = only(sent)
    assert EnvironmentBuild.objects.get().requester == bob
    assert reason_of(row) == "“VS Code” is being installed in this pool."
    progress(command, "installing", done=40, total=62)
    cycle.decide()
    assert reason_of(row).startswith("“VS Code” is being installed in this pool: installing 40 of 62")
    assert "installing 40 of 62" in as_user(bob).get(f"/workspaces/{row.pk}/").content.decode()
    assert built(command, programs=PROGRAMS)
    cycle.decide()
    row.refresh_from_db()
    version = Environment.objects.get(slug="vscode").current
    assert (row.state, row.environment_version) == ("provisioning", version)
    assert row.resources["needs"] == [f"environment:{version.digest}"]
    (start,) = [message.command for message in sent.take("node.execute")]
    assert start.spec.environment == version.digest


def test_failed_build_shows_the_reason_and_whom_to_ask(vscode, make, bob, sent, as_user):
    row = make(bob, template="vscode")
    assert failed(only(sent), "resolution_failed", "no code-server for this machine")
    cycle.decide()
    said = reason_of(row)
    assert said.startswith("“VS Code” could not be installed. The package requirements conflict")
    assert "no code-server for this machine" in said
    with pytest.raises(NotPossible):
        make(bob, template="vscode")
    environment = Environment.objects.get(slug="vscode")
    refused = as_user(bob).post(
        "/api/v1/workspaces",
        {"team": "vision", "template": "vscode", "flavor": "cpu-small", "environment": "vscode"},
        "application/json",
    )
    assert refused.status_code == 409
    assert refused.json()["code"] == "environment_not_installed"
    assert "Ask an operator to check VS Code" in refused.json()["next_action"]
    # An operator's fix is another version, which waiting workspaces use.
    services.change_source(
        actor=SYSTEM,
        environment=environment,
        source_kind="packages",
        source="npm:code-server",
    )
    assert built(only(sent), programs=PROGRAMS)
    cycle.decide()
    row.refresh_from_db()
    assert (row.state, row.environment_version.number) == ("provisioning", 2)


def test_start_with_a_ready_environment_does_not_wait_for_a_build(vscode, make, bob, sent):
    prefer_environment(template="jupyterlab", environment="pytorch")
    row = make(bob, template="jupyterlab")
    assert (row.state, row.environment_version) == ("provisioning", None)
    assert not EnvironmentBuild.objects.exists()


def test_named_environment_is_built_before_the_start(vscode, make, bob, sent):
    row = make(bob, environment=Environment.objects.get(slug="pytorch"))
    assert (row.state, row.environment_version.environment.slug) == ("pending", "pytorch")
    assert built(only(sent))
    row.refresh_from_db()
    assert row.resources["needs"] == [f"environment:{row.environment_version.digest}"]


def test_environment_without_the_program_is_refused_at_once(vscode, make, bob, sent):
    Environment.objects.filter(slug="pytorch").update(notebook=False)
    version = Environment.objects.get(slug="pytorch").versions.get()
    version.source = "torch\n"
    version.save()
    with pytest.raises(InvalidInput):
        make(bob, environment=Environment.objects.get(slug="pytorch"))
    assert not EnvironmentBuild.objects.exists()


def test_builds_on_request_can_be_disabled(vscode, make, bob, sent, settings):
    settings.BERTH_BUILD_WHEN_ASKED = False
    with pytest.raises(NotPossible):
        make(bob, template="vscode")
    with pytest.raises(StateConflict):
        make(bob, environment=Environment.objects.get(slug="vscode"))
    assert not EnvironmentBuild.objects.exists()


def test_previews_build_nothing(vscode, bob, as_user, sent):
    order = {"team": "vision", "template": "vscode", "flavor": "cpu-small"}
    answer = as_user(bob).post("/api/v1/admission/preview", order, "application/json").json()
    assert (answer["outcome"], answer["reason"]["code"]) == ("queued", "environment_being_installed")
    assert not EnvironmentBuild.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_requests_at_once_build_once(vscode, make, bob, alice, sent):
    outcomes = at_once([lambda: make(bob, template="vscode"), lambda: make(alice, template="vscode")])
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert EnvironmentBuild.objects.count() == 1
