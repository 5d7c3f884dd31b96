"""The button of an entry's page that starts a workspace with it."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Role
from tests.factories import (
    MembershipFactory,
    TeamFactory,
    TemplateFactory,
    WorkspaceFactory,
    local_pool_with,
    node_info,
)

pytestmark = pytest.mark.django_db


def start_url(client: Any, path: str) -> str:
    """The address of the button, or an empty string."""
    return str(client.get(path).context["start"].url)


@pytest.mark.parametrize("path", ["templates/marimo", "flavors/cpu-small"])
def test_button_opens_the_form_with_the_entry_chosen(as_user, bob, team, local_pool, path):
    kind, slug = path.split("s/")
    client = as_user(bob)
    page = client.get(f"/catalog/{path}/").content.decode()
    url = start_url(client, f"/catalog/{path}/")
    assert url == f"/workspaces/new/?{kind}={slug}&team={team.slug}"
    assert f'id="start"\n  href="{url.replace("&", "&amp;")}"' in page
    choice = client.get(url).context["choice"]
    assert getattr(choice, kind).slug == slug and choice.team == team


def test_the_form_charges_a_team_that_may_use_the_template(as_user, bob, team, catalog):
    other = TeamFactory(slug="zeta")
    MembershipFactory(user=bob, team=other)
    TemplateFactory(slug="theirs", team=other)
    WorkspaceFactory(owner=bob, team=team)
    client = as_user(bob)
    url = start_url(client, "/catalog/templates/theirs/")
    choice = client.get(url).context["choice"]
    assert (choice.template.slug, choice.team) == ("theirs", other)
    # Both teams may use this one: the form charges the team of the last workspace.
    assert start_url(client, "/catalog/templates/marimo/").endswith(f"&team={team.slug}")


def test_no_button_for_people_who_cannot_use_the_entry(as_user, olga, bob, alice, team, catalog):
    path = "/catalog/templates/jupyterlab/"
    assert start_url(as_user(bob), path)
    # An operator without a team sees all entries and starts nothing.
    assert not olga.memberships.exists() and start_url(as_user(olga), path) == ""
    team.memberships.filter(user=bob).update(role=Role.VIEWER)
    assert start_url(as_user(bob), path) == ""
    Template.objects.filter(slug="jupyterlab").update(team=team, enabled=False)
    page = as_user(alice).get(path)
    assert page.context["start"].url == "" and "New workspaces cannot use it" in page.content.decode()


def test_no_button_where_the_form_would_not_offer_the_template(as_user, bob, team, catalog):
    local_pool_with(node_info())
    Template.objects.filter(slug="rstudio").update(program="missing")
    client = as_user(bob)
    page = client.get("/catalog/templates/rstudio/")
    assert page.context["row"].blocker and page.context["start"].url == ""


def test_restricted_flavor_has_no_button_for_other_teams(as_user, olga, team, catalog):
    MembershipFactory(user=olga, team=team)
    Flavor.objects.filter(slug="cpu-small").update(restricted=True)
    assert start_url(as_user(olga), "/catalog/flavors/cpu-small/") == ""
