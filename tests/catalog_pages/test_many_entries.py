"""Choice fields and query counts with thousands of entries."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.environments import selectors
from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.catalog.models import Flavor, Template
from portal.people.accounts.models import Team
from portal.workspaces.models import Workspace
from tests.catalog_pages.test_pages import as_typed
from tests.factories import FlavorFactory, TemplateFactory

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.thorough("two thousand entries; `make test` has the forms with few"),
]

MANY = 2000
LAST = f"tools-{MANY - 1:04}"


def environments(count: int = MANY, *, ready: bool = True, team: Team | None = None) -> list[Environment]:
    """Create environments with one version each, in bulk."""
    now = timezone.now()
    made = Environment.objects.bulk_create(
        Environment(slug=f"tools-{n:04}", name=f"Tools {n:04}", updated_at=now, team=team)
        for n in range(count)
    )
    versions = EnvironmentVersion.objects.bulk_create(
        EnvironmentVersion(
            environment=each, number=1, source_kind="packages", source="numpy", python="3.12",
            state="ready" if ready else "failed", digest=f"{place:032x}" if ready else "",
            programs=["python3", "jupyter-lab"] if ready else [],
        )
        for place, each in enumerate(made)
    )  # fmt: skip
    if ready:
        for each, version in zip(made, versions, strict=True):
            each.current = version
        Environment.objects.bulk_update(made, ["current"], batch_size=500)
    return made


def templates(count: int = MANY) -> None:
    Template.objects.bulk_create(
        TemplateFactory.build(slug=f"t{n:04}", name=f"Tool {n:04}", argv=["bash", "{port}"], position=100 + n)
        for n in range(count)
    )


def flavors(count: int = MANY) -> None:
    Flavor.objects.bulk_create(
        FlavorFactory.build(slug=f"f{n:04}", name=f"Size {n:04}", position=100 + n) for n in range(count)
    )


def written(page: Any, ident: str) -> str:
    """The completed text field with this id."""
    text = page.content.decode()
    found = next(part for part in text.split("<input ") if f'id="{ident}"' in part.partition(">")[0])
    field = found.partition(">")[0]
    assert f'list="{ident}-proposed"' in field
    return field


def test_any_of_two_thousand_environments_can_be_the_successor(as_user, olga):
    environments()
    browser = as_user(olga)
    at = "/environments/tools-0001/edit/"
    page = browser.get(at)
    assert 'hx-get="/catalog/completions/environments/"' in written(page, "id_successor")
    given = {"do": "about", "name": "Tools 0001", "deprecated": "on", "successor": LAST}
    given["version"] = page.context["version"]
    assert browser.post(at, given).status_code == 302
    assert Environment.objects.get(slug="tools-0001").successor.slug == LAST
    again = browser.get(at)
    assert f'value="{LAST}"' in written(again, "id_successor")
    refused = browser.post(at, {**given, "version": again.context["version"], "successor": "nothing-such"})
    assert refused.status_code == 400
    assert "nothing-such" in refused.content.decode()
    assert Environment.objects.get(slug="tools-0001").successor.slug == LAST


@pytest.mark.parametrize("kind", ["template", "flavor"])
def test_any_of_two_thousand_entries_can_be_the_successor(kind, as_user, olga):
    templates() if kind == "template" else flavors()
    model: Any = Template if kind == "template" else Flavor
    entry, last = model.objects.get(slug=f"{kind[0]}0001"), f"{kind[0]}{MANY - 1}"
    browser = as_user(olga)
    at = f"/catalog/{kind}s/{entry.slug}/edit/"
    assert f'hx-get="/catalog/completions/{kind}s/"' in written(browser.get(at), "id_successor")
    saved = browser.post(at, as_typed(None, entry, deprecated="on", successor=last))
    assert saved.status_code == 302, saved.context["form"].errors
    entry.refresh_from_db()
    assert entry.successor.slug == last
    refused = browser.post(at, as_typed(None, entry, successor="nothing-such"))
    assert refused.status_code == 400


def test_any_of_two_thousand_environments_can_be_set_on_a_template(as_user, olga):
    environments()
    template = TemplateFactory(slug="plots", program="jupyter-lab", argv=["jupyter-lab", "{port}"])
    browser = as_user(olga)
    at = "/catalog/templates/plots/edit/"
    assert 'hx-get="/catalog/completions/environments/?team="' in written(browser.get(at), "id_environment")
    assert browser.post(at, as_typed(None, template, environment=LAST)).status_code == 302
    template.refresh_from_db()
    assert template.environment.slug == LAST
    assert f'value="{LAST}"' in written(browser.get(at), "id_environment")
    refused = browser.post(at, as_typed(None, template, environment="nothing-such"))
    assert refused.status_code == 400
    template.refresh_from_db()
    assert template.environment.slug == LAST


def test_template_can_be_created_from_the_last_of_many_entries(as_user, olga):
    environments()
    templates()
    Template.objects.filter(slug=f"t{MANY - 1}").update(program="jupyter-lab")
    browser = as_user(olga)
    page = browser.get(f"/catalog/templates/new/?environment={LAST}")
    assert page.context["of"] == f"t{MANY - 1}"
    assert f'value="{LAST}"' in written(page, "id_environment")
    assert f'value="t{MANY - 1}"' in written(page, "begin-of")
    assert page.context["form"]["program"].value() == "jupyter-lab"


def test_workspace_can_use_the_last_of_many_environments(as_user, bob, team, local_pool):
    environments()
    TemplateFactory(slug="plots", name="Plots", program="jupyter-lab", argv=["jupyter-lab", "{port}"])
    FlavorFactory(slug="small", cpu_milli=100, memory_mib=128)
    browser = as_user(bob)
    page = browser.get(f"/workspaces/new/?environment={LAST}&template=plots")
    field = written(page, "environment")
    assert f'value="{LAST}"' in field
    assert 'hx-get="/catalog/completions/environments/?team=vision"' in field
    assert page.context["choice"].environment == LAST
    given = {"template": "plots", "flavor": "small", "team": "vision", "name": "mine", "once": "1"}
    refused = browser.post("/workspaces/new/", {**given, "environment": "nothing-such"})
    assert refused.status_code == 400
    assert 'value="nothing-such"' in written(refused, "environment")
    assert refused.context["choice"].environment_note
    assert browser.post("/workspaces/new/", {**given, "environment": LAST}).status_code == 302
    assert Workspace.objects.get(name="mine").environment_version.environment.slug == LAST


def test_server_completes_typed_text(as_user, olga, bob, team):
    environments()
    templates()
    flavors()
    browser = as_user(bob)
    for kind, words, slug in (
        ("environments", "1999", LAST), ("templates", "tool 1999", "t1999"), ("flavors", "f1999", "f1999"),
    ):  # fmt: skip
        answer = browser.get(f"/catalog/completions/{kind}/", {"q": words}).content.decode()
        assert answer.count("<option") == 1, answer
        assert f'<option value="{slug}">' in answer
    asked = browser.get(
        "/catalog/completions/environments/",
        {"successor": "1999"}, HTTP_HX_REQUEST="true", HTTP_HX_TRIGGER_NAME="successor",
    )  # fmt: skip
    assert f'<option value="{LAST}">' in asked.content.decode()
    assert browser.get("/catalog/completions/templates/?copy=1").content == b""
    assert as_user(olga).get("/catalog/completions/templates/?copy=1&q=1999").content.count(b"<option") == 1


def test_completion_hides_invisible_entries(as_user, charlie, bob, team):
    environments(3, team=team)
    assert b"tools-0001" in as_user(bob).get("/catalog/completions/environments/").content
    assert b"tools-0001" in as_user(bob).get("/catalog/completions/environments/?team=vision").content
    assert as_user(bob).get("/catalog/completions/environments/?team=").content == b""
    assert as_user(charlie).get("/catalog/completions/environments/").content == b""
    assert as_user(charlie).get("/catalog/completions/environments/?team=vision").status_code == 404
    assert b"vision" not in as_user(charlie).get("/catalog/completions/teams/").content


def test_teams_beyond_the_list_limit_are_typed(as_user, olga, team):
    Team.objects.bulk_create(Team(slug=f"team-{n:04}", name=f"Team {n:04}") for n in range(MANY))
    browser = as_user(olga)
    page = browser.get("/catalog/templates/new/?team=team-1999")
    assert 'value="team-1999"' in written(page, "for-team")
    assert b'<option value="team-1999">' in browser.get("/catalog/completions/teams/?q=1999").content
    flavor = FlavorFactory(slug="small")
    assert "team-1999" in written(browser.get(f"/catalog/flavors/{flavor.slug}/?team=team-1999"), "team")


def test_few_entries_are_shown_as_a_select(as_user, olga):
    environments(20)
    page = as_user(olga).get("/environments/tools-0001/edit/").content.decode()
    assert '<select name="successor"' in page
    assert '<select name="environment"' in as_user(olga).get("/catalog/templates/new/").content.decode()


def test_workspace_form_query_count_is_constant_with_500_unready_environments(as_user, bob, team, local_pool):
    browser = as_user(bob)

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            page = browser.get("/workspaces/new/?template=t0001")
        assert page.status_code == 200
        assert page.context["choice"].template.slug == "t0001"
        return len(queries)

    templates(3)
    flavors(3)
    environments(3, ready=False)
    few = asked()
    for each in (Environment, Template, Flavor):
        each.objects.all().delete()
    templates(500)
    flavors(500)
    environments(500, ready=False)
    assert asked() <= few + 2


def test_bulk_forecast_equals_single_forecasts(django_assert_num_queries):
    made = environments(5, ready=False)
    with django_assert_num_queries(3):
        found = selectors.pending_versions(made)
    assert found == {each.pk: selectors.pending_version(each) for each in made}
