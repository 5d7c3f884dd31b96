"""Previews of a new version: changes, affected users and build, on the page and over REST."""

from __future__ import annotations

import pytest

from portal.catalog.environments import previews
from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed
from provisioning.environment_messages import Package
from tests.environments.helpers import LOCK, built, environment, only, ready
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    TeamFactory,
    TemplateFactory,
    UserFactory,
    create_workspace,
)

pytestmark = pytest.mark.django_db
SOURCE = "numpy\npandas>=2\n"
HAS = (Package("numpy", "2.1.0", 30_720), Package("pandas", "2.2.3", 40_000), Package("jupyterlab", "4.4", 9))


@pytest.fixture
def tools(local_pool, sent) -> Environment:
    """An environment of the site with numpy 2.1.0 and pandas 2.2.3, without notebook packages."""
    made = environment(source=SOURCE, notebook=False)
    assert built(only(sent), packages=HAS)
    made.refresh_from_db()
    return made


def preview_of(made: Environment, source: str, **more: str) -> previews.Preview:
    return previews.preview(
        actor=SYSTEM, environment=made, **{"source_kind": "packages", "source": source, **more}
    )


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (SOURCE, ("No changes to the list. A build uses newer package versions.",)),
        ("numpy>=2.2\npandas>=2\n", ("numpy 2.1.0 → >=2.2",)),
        ("numpy\npandas>=2\npolars\n", ("polars added",)),
        ("NumPy>=2\n", ("pandas no longer requested",)),
        ("numpy<3\npandas>=2\n", ("The current version has all requested packages.",)),
        ("numpy\npandas>=2\nxlrd; python_version < '3'\n", None),
        ("numpy\npandas>=2\nnpm:code-server\n", ("code-server added",)),
    ],
)
def test_preview_compares_a_list_with_the_current_version(tools, source, lines):
    found = preview_of(tools, source)
    enough = ("The current version has all requested packages.",)
    assert (found.against, found.exact, found.changes) == (1, False, lines or enough)


def test_preview_of_a_lock_is_exact_and_shows_another_python_version(tools):
    lock = LOCK.replace("2.1.0", "2.2.1")
    found = preview_of(tools, lock, source_kind="lock", python="3.13")
    assert found.exact
    assert found.changes == (
        "Python 3.12 → 3.13", "numpy 2.1.0 → 2.2.1", "jupyterlab removed", "pandas removed",
    )  # fmt: skip
    assert EnvironmentVersion.objects.filter(environment=tools).count() == 1


def test_preview_lists_affected_templates_and_workspaces(tools, team, bob):
    template = TemplateFactory(slug="plots", name="Plots", program="bash", argv=["bash", "{port}"])
    Template.objects.filter(pk=template.pk).update(environment=tools)
    template.refresh_from_db()
    create_workspace(
        actor=bob, team=team, template=template, flavor=FlavorFactory(), name="mine", environment=tools
    )
    found = preview_of(tools, "numpy")
    assert (found.reach.workspaces, found.reach.running, found.reach.templates) == (1, 0, ("Plots",))
    assert "Templates that use it for new workspaces: Plots." in found.when
    assert any(line.startswith("1 workspace keeps its version") for line in found.when)


def test_preview_without_a_node_shows_that_the_build_waits(sent):
    made = environment(source=SOURCE)
    found = preview_of(made, SOURCE)
    assert (found.against, found.changes) == (0, ("First version.",))
    assert found.when == ("No node can build it now. The build waits for one.",)


def test_preview_refuses_invalid_changes(tools, team, alice):
    with pytest.raises(InvalidInput):
        preview_of(tools, "--index-url https://elsewhere.example\n")
    with pytest.raises(NotAllowed):
        previews.preview(actor=alice, environment=tools, source_kind="packages", source="numpy")


def test_preview_page_keeps_input_and_changes_nothing(tools, olga, as_user):
    sent = {"do": "preview", "source_kind": "packages", "source": "numpy>=3\n<b>", "python": "3.12"}
    refused = as_user(olga).post("/environments/vision-tools/edit/", sent)
    assert "&lt;b&gt;" in refused.content.decode()
    page = as_user(olga).post("/environments/vision-tools/edit/", {**sent, "source": "numpy>=3"})
    assert page.status_code == 200
    text = page.content.decode()
    assert "numpy 2.1.0 → &gt;=3" in text
    assert "numpy&gt;=3</textarea>" in text
    assert EnvironmentVersion.objects.filter(environment=tools).count() == 1


def test_rest_preview_is_limited_to_managers(local_pool, sent, team, alice, client):
    made = ready(sent, team=team, actor=alice, source="numpy")
    other = MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner").user
    path = f"/api/v1/environments/{made.slug}/preview"
    client.force_login(alice)
    answer = client.post(path, {"source": "numpy\npolars"}, "application/json")
    assert answer.json()["changes"] == ["polars added", "jupyterlab added", "marimo added"]
    client.force_login(other)
    assert client.post(path, {"source": "numpy"}, "application/json").status_code == 404
