"""Packages installed by users on top of an environment: listed, reset at a start, saved as an environment."""

from __future__ import annotations

import pytest

from portal.catalog.environments.models import Environment, EnvironmentVersion, SourceKind
from portal.catalog.environments.sources import pinned_requirements
from portal.common.errors import NotAllowed, StateConflict, Unavailable
from portal.common.events.models import Event
from portal.people.accounts.models import Membership, Role
from portal.workspaces import node_rpc, own_packages, results, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.types import Op
from tests.environments.helpers import ready
from tests.environments.test_workspaces import create
from tests.factories import WorkspaceFactory
from tests.workspaces.helpers import answer, run_until_ready, seen, taken

pytestmark = pytest.mark.django_db
SAID = {"packages": ["polars==1.9.0", "NumPy==2.2.0", "-r /etc/passwd", "x==1; import os"], "python": "3.12"}


@pytest.fixture
def asked(monkeypatch):
    """Record node requests, each answered with `SAID`."""
    questions = []

    def ask(task, given, **where):
        questions.append((task, given, where))
        return dict(SAID)

    monkeypatch.setattr(node_rpc, "call", ask)
    return questions


@pytest.fixture
def workspace(team, bob, local_pool, sent):
    """Bob's workspace with the environment Vision tools and numpy 2.1.0."""
    found = create(bob, team, ready(sent))
    run_until_ready(sent, found)
    return found


def stop_it(sent, workspace):
    services.stop(actor=workspace.owner, workspace_id=workspace.pk)
    assert answer(sent, "stop", "stopped")
    workspace.refresh_from_db()
    assert workspace.state == State.STOPPED


def ready_now(start, workspace):
    assert results.apply_result(seen(start, "running", ready=True, endpoint="http://127.0.0.1:18001"))
    workspace.refresh_from_db()


def url(workspace, rest=""):
    return f"/workspaces/{workspace.pk}/packages/{rest}"


def rest(workspace, end=""):
    return f"/api/v1/workspaces/{workspace.pk}/packages{end}"


def test_node_is_queried_for_the_home_of_the_owner(workspace, bob, asked):
    own = own_packages.read(actor=bob, workspace=workspace)
    assert own.python == "3.12"
    assert [(package.name, package.version, package.instead_of) for package in own.packages] == [
        ("polars", "1.9.0", ""),
        ("NumPy", "2.2.0", "2.1.0"),
    ]
    ((task, given, where),) = asked
    assert task == "node.read_overlay"
    assert given["of"] == {
        "team": "vision",
        "owner": "bob",
        "environment": workspace.environment_version.digest,
        "environment_name": "vision-tools",
    }
    assert given["pool"]["slug"] == "this-machine"
    assert where["node"] == "node-1"


def test_node_is_not_queried_before_the_first_start(team, bob, local_pool, asked):
    waiting = WorkspaceFactory(owner=bob, team=team, state=State.PENDING)
    assert own_packages.read(actor=bob, workspace=waiting).packages == ()
    assert asked == []


@pytest.mark.parametrize("said", [{}, {"packages": "numpy"}, {"packages": [1, None, {}]}, {"packages": None}])
def test_invalid_package_list_is_ignored(workspace, bob, monkeypatch, said):
    monkeypatch.setattr(node_rpc, "call", lambda *_, **__: said)
    assert own_packages.read(actor=bob, workspace=workspace) == own_packages.OwnPackages()


def test_error_of_the_node_is_shown_on_the_page(workspace, as_user, bob, monkeypatch):
    monkeypatch.setattr(node_rpc, "call", lambda *_, **__: {"error": "The disk is gone."})
    with pytest.raises(Unavailable, match="disk is gone"):
        own_packages.read(actor=bob, workspace=workspace)
    page = as_user(bob).get(url(workspace))
    assert page.status_code == 200
    assert "The disk is gone." in page.content.decode()


def test_packages_of_another_user_cannot_be_read_or_reset(workspace, alice, olga, as_user, asked):
    for other in (alice, olga):
        with pytest.raises(NotAllowed):
            own_packages.read(actor=other, workspace=workspace)
        for act in (own_packages.reset, own_packages.cancel_reset):
            with pytest.raises(NotAllowed):
                act(actor=other, workspace_id=workspace.pk)
        assert as_user(other).get(url(workspace)).status_code == 403
        assert as_user(other).post(url(workspace, "reset/")).status_code == 403
    assert asked == []
    assert Workspace.objects.get(pk=workspace.pk).packages_reset_after is None


def test_next_start_removes_packages_once(workspace, bob, sent):
    own_packages.reset(actor=bob, workspace_id=workspace.pk)
    own_packages.reset(actor=bob, workspace_id=workspace.pk)
    assert Event.objects.filter(kind="workspace.packages_reset_asked").count() == 1
    stop_it(sent, workspace)
    services.start(actor=bob, workspace_id=workspace.pk)
    start = taken(sent, Op.START)
    assert (start.spec.reset_packages, start.spec.environment_name) == (True, "vision-tools")
    with pytest.raises(StateConflict):
        own_packages.cancel_reset(actor=bob, workspace_id=workspace.pk)
    ready_now(start, workspace)
    stop_it(sent, workspace)
    services.start(actor=bob, workspace_id=workspace.pk)
    assert not taken(sent, Op.START).spec.reset_packages


def test_reset_requested_during_a_resetting_start_applies_to_the_next(workspace, bob, sent):
    own_packages.reset(actor=bob, workspace_id=workspace.pk)
    stop_it(sent, workspace)
    services.start(actor=bob, workspace_id=workspace.pk)
    start = taken(sent, Op.START)
    own_packages.reset(actor=bob, workspace_id=workspace.pk)
    ready_now(start, workspace)
    workspace.refresh_from_db()
    assert own_packages.reset_waits(workspace)
    stop_it(sent, workspace)
    services.start(actor=bob, workspace_id=workspace.pk)
    assert taken(sent, Op.START).spec.reset_packages


def test_reset_can_be_cancelled_until_the_start(workspace, bob, sent):
    own_packages.reset(actor=bob, workspace_id=workspace.pk)
    own_packages.cancel_reset(actor=bob, workspace_id=workspace.pk)
    own_packages.cancel_reset(actor=bob, workspace_id=workspace.pk)
    assert Event.objects.filter(kind="workspace.packages_kept").count() == 1
    stop_it(sent, workspace)
    services.start(actor=bob, workspace_id=workspace.pk)
    assert not taken(sent, Op.START).spec.reset_packages


def test_pages_list_packages_and_workspaces_sharing_them(workspace, bob, team, as_user, asked):
    other = create(bob, team, Environment.objects.get(), name="twin")
    browser = as_user(bob)
    page = browser.get(url(workspace)).content.decode()
    assert "polars" in page and "2.1.0" in page and other.name in page
    question = browser.get(url(workspace, "reset/")).content.decode()
    assert "polars 1.9.0" in question and "twin" in question
    done = browser.post(url(workspace, "reset/"), follow=True).content.decode()
    assert "Keep packages" in done
    assert "Keep packages" in browser.get(f"/workspaces/{workspace.pk}/").content.decode()
    assert "Keep packages" not in browser.post(url(workspace, "keep/"), follow=True).content.decode()


def test_member_gets_the_list_and_owner_can_create_an_environment(workspace, bob, as_user, asked, sent):
    browser = as_user(bob)
    page = browser.get(url(workspace)).content.decode()
    assert "numpy==2.2.0" in page and url(workspace, "save/") not in page
    assert browser.get(url(workspace, "save/")).status_code == 403
    assert browser.post(url(workspace, "save/"), {"name": "Mine", "source": "x"}).status_code == 403
    Membership.objects.filter(user=bob).update(role=Role.OWNER)
    form = browser.get(url(workspace, "save/")).content.decode()
    assert "numpy==2.2.0" in form
    given = {"name": "What bob has", "team": "vision", "source": "numpy==2.2.0\npolars==1.9.0\n"}
    assert browser.post(url(workspace, "save/"), given).status_code == 302
    made = EnvironmentVersion.objects.get(environment__slug="what-bob-has")
    assert (made.environment.team.slug, made.python) == ("vision", "3.12")
    assert made.source_kind == SourceKind.REQUIREMENTS
    assert sent.of("node.environment_build")
    refused = browser.post(url(workspace, "save/"), {**given, "team": "", "name": "All"})
    assert refused.status_code == 400


def test_own_packages_over_rest(workspace, with_token, bob, asked):
    client = with_token(bob)
    found = client.get(rest(workspace)).json()
    assert found["environment"] == "vision-tools" and found["python"] == "3.12"
    assert found["packages"][1] == {"name": "NumPy", "version": "2.2.0", "instead_of": "2.1.0"}
    assert found["requirements"] == "numpy==2.2.0\npolars==1.9.0\n"
    assert client.post(rest(workspace, "/reset")).status_code == 202
    assert client.get(rest(workspace)).json()["reset_at_next_start"] is True
    assert client.post(rest(workspace, "/reset/cancel")).json() == {"reset_at_next_start": False}
    body = {"name": "Saved"}
    assert client.post(rest(workspace, "/save"), body, content_type="application/json").status_code == 403
    Membership.objects.filter(user=bob).update(role=Role.OWNER)
    made = client.post(rest(workspace, "/save"), body, content_type="application/json")
    assert (made.status_code, made.json()["team"]) == (201, "vision")
    everybody = {"name": "All", "everybody": True}
    refused = client.post(rest(workspace, "/save"), everybody, content_type="application/json")
    assert refused.status_code == 403


def test_empty_package_list_makes_no_environment(workspace, bob, monkeypatch):
    monkeypatch.setattr(node_rpc, "call", lambda *_, **__: {"packages": [], "python": "3.12"})
    own = own_packages.read(actor=bob, workspace=workspace)
    with pytest.raises(StateConflict) as refused:
        own_packages.save(actor=bob, workspace=workspace, own=own, team=workspace.team, name="Nothing")
    assert refused.value.code == "nothing_installed"


@pytest.mark.parametrize(
    ("kind", "text", "made"),
    [
        ("packages", "numpy>=2\npandas[excel]\nnpm:code-server\n",
         "numpy==1.26\npandas[excel]==2.2\nnpm:code-server\nPolars==1\n"),
        ("requirements", "# mine\nnumpy ; python_version < '3.9'\nodd\n", "numpy==1.26\nodd\nPolars==1\n"),
        ("pyproject", "[project]\ndependencies = ['pandas<3']\n", "pandas==2.2\nnumpy==1.26\nPolars==1\n"),
        ("lock", "pandas==2.2 --hash=sha256:00\n", "pandas==2.2\nnumpy==1.26\nPolars==1\n"),
        ("packages", "", "numpy==1.26\nPolars==1\n"),
    ],
)  # fmt: skip
def test_requirements_combine_environment_and_own_packages(kind, text, made):
    more = [("numpy", "1.26"), ("Polars", "1")]
    assert pinned_requirements(kind, text, have={"numpy": "2.1", "pandas": "2.2"}, more=more) == made
