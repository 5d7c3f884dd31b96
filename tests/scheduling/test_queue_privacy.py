"""The queue hides names of private flavors and templates from other teams."""

from __future__ import annotations

import pytest

from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.models import Flavor, Template
from portal.common.reasons.reason import Reason
from portal.workspaces.models import QueueEntry, Workspace
from tests.factories import FlavorFactory, MembershipFactory, TeamFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def hidden(team, bob, make, local_pool) -> Workspace:
    """A waiting request of vision, with a flavor and a template visible only to vision."""
    flavor = FlavorFactory(slug="vision-secret-size", cpu_milli=4000, restricted=True)
    flavor.teams.add(team)
    row = make(bob, "vision-secret-size")
    Workspace.objects.filter(pk=row.pk).update(state="pending")
    waits = {"environment": "Vision secret tools", "state": "building", "percent": 40}
    QueueEntry.objects.filter(pk=row.pk).update(
        outcome="queued", reason=Reason(EnvironmentCode.ON_ITS_WAY, waits).as_json()
    )
    return row


@pytest.fixture
def stranger():
    return MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner").user


def test_hidden_sizes_and_software_are_not_named(hidden, stranger, as_user):
    browser = as_user(stranger)
    answer = browser.get("/api/v1/queue")
    assert "secret" not in answer.content.decode()
    (row,) = answer.json()["results"]
    assert (row["flavor"], row["name"], row["workspace"]) == (None, None, None)
    assert row["message"] == "“Software” is being built: 40 %."
    page = browser.get("/queue/").content.decode()
    assert "secret" not in page
    assert "Software" in page


def test_visible_sizes_and_software_are_named(hidden, bob, olga, as_user):
    for reader in (bob, olga):
        (row,) = as_user(reader).get("/api/v1/queue").json()["results"]
        assert row["flavor"] == "vision-secret-size"
        assert "Vision secret tools" in row["message"]
        assert "Vision secret tools" in as_user(reader).get("/queue/").content.decode()


def test_public_flavor_is_visible_to_all(hidden, stranger, as_user):
    Flavor.objects.filter(slug="vision-secret-size").update(restricted=False)
    (row,) = as_user(stranger).get("/api/v1/queue").json()["results"]
    assert (row["flavor"], row["name"]) == ("vision-secret-size", None)


def test_previews_report_deprecated_flavors_and_templates(make, team, bob, local_pool, catalog, as_user):
    Flavor.objects.filter(slug="cpu-small").update(
        deprecated=True, successor=Flavor.objects.get(slug="cpu-large")
    )
    Template.objects.filter(slug="jupyterlab").update(deprecated=True)
    browser = as_user(bob)
    order = {"team": "vision", "template": "jupyterlab", "flavor": "cpu-small"}
    for path in ("/api/v1/admission/preview", "/api/v1/catalog/preview"):
        answer = browser.post(path, order, "application/json")
        warned = {each["field"]: each["reason"]["code"] for each in answer.json()["warnings"]}
        assert warned == {"flavor": "entry_has_successor", "template": "entry_deprecated"}, path
    current = browser.post(
        "/api/v1/admission/preview",
        {**order, "template": "marimo", "flavor": "cpu-large"},
        "application/json",
    )
    assert current.json()["warnings"] == []
