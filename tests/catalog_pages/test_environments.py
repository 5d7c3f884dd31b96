"""Environments of templates: form, cards, page, versions and previews."""

from __future__ import annotations

from typing import Any

import pytest

from portal.catalog import documents, entries
from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.catalog.models import Template
from portal.common.actors import SYSTEM
from portal.web.catalog.previews import preview
from tests.catalog_pages.test_pages import as_typed
from tests.environments.helpers import LOCK, built, environment, only, progress, ready
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    TeamFactory,
    TemplateFactory,
    UserFactory,
    create_workspace,
    local_pool_with,
    node_info,
)

pytestmark = pytest.mark.django_db


def form_of(page: Any) -> Any:
    return page.context["form"]


def labels(page: Any) -> dict[str, str]:
    return dict(form_of(page).fields["environment"].choices)


def test_form_shows_ready_building_and_driver_incompatible_environments(as_user, olga, sent):
    pool = local_pool_with(node_info(gpus=1, cuda_version="12.4"))
    made = environment(name="Torch")
    assert built(only(sent), cuda="13.2")
    environment(name="Near")
    assert built(only(sent), cuda="12.9", lock=LOCK.replace("numpy", "near"))
    environment(name="Slow", source="polars")
    progress(only(sent), "compiling", done=1, total=2)
    Environment.objects.create(slug="later", name="Later", updated_at=made.updated_at)
    shown = labels(as_user(olga).get("/catalog/templates/new/"))
    assert shown["torch"] == f"Torch · ready · CUDA 13.2 · newer than the drivers of {pool.name} (12.4)"
    assert shown["near"] == "Near · ready · CUDA 12.9"
    assert shown["slow"] == "Slow · is being built: 90 %"
    assert shown["later"] == "Later · has not been built yet"
    assert shown[""] == "Software of the node"


def test_operator_sets_the_environment_and_page_and_versions_show_it(as_user, olga, local_pool, sent):
    ready(sent, name="Vision tools")
    template = TemplateFactory(
        slug="plots", name="Plots", program="jupyter-lab", argv=["jupyter-lab", "{port}"]
    )
    browser = as_user(olga)
    done = browser.post(
        "/catalog/templates/plots/edit/", as_typed(None, template, environment="vision-tools")
    )
    assert done.status_code == 302
    template.refresh_from_db()
    assert template.environment.slug == "vision-tools"
    page = browser.get("/catalog/templates/plots/").content.decode()
    assert '<a href="/environments/vision-tools/">Vision tools</a>' in page
    assert "<ins>Vision tools</ins>" in page
    listed = browser.get("/catalog/templates/").content.decode()
    assert "Vision tools · ready" in listed
    # The environment can be kept and removed.
    template.refresh_from_db()
    form = form_of(browser.get("/catalog/templates/plots/edit/"))
    assert form["environment"].value() == "vision-tools"
    assert (
        browser.post("/catalog/templates/plots/edit/", as_typed(None, template, environment="")).status_code
        == 302
    )
    assert documents.document_of(Template.objects.get(slug="plots"))["environment"] is None
    asked = browser.get("/catalog/templates/plots/versions/2/restore/").content.decode()
    assert "Environment: – → Vision tools" in asked


def test_missing_program_in_the_environment_is_a_warning(as_user, olga, local_pool, sent):
    environment(name="Vision tools", notebook=False)
    assert built(only(sent), programs=("python3",))
    given = as_typed(
        Template(argv=[], env={}), slug="notes", name="Notes", program="jupyter-lab",
        argv="jupyter-lab\n{port}", environment="vision-tools", preview="1",
    )  # fmt: skip
    page = as_user(olga).post("/catalog/templates/new/", given).content.decode()
    assert "“Vision tools” has no jupyter-lab, which Notes needs." in page


def test_environment_of_another_team_is_hidden_and_refused(as_user, local_pool, team, alice, sent):
    other = MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner")
    ready(sent, name="Hidden", team=other.team, actor=other.user)
    browser = as_user(alice)
    page = browser.get("/catalog/templates/new/?team=vision")
    assert "Hidden" not in page.content.decode()
    given = as_typed(
        Template(argv=[], env={}), slug="shell", name="Shell", program="bash", argv="bash\n{port}",
        environment="hidden",
    )  # fmt: skip
    refused = browser.post("/catalog/templates/new/?team=vision", given)
    assert refused.status_code == 400
    assert not Template.objects.filter(name="Shell").exists()


def test_team_owner_can_choose_an_environment_of_the_team(as_user, local_pool, team, alice, sent):
    ready(sent, name="Ours", team=team, actor=alice)
    given = as_typed(
        Template(argv=[], env={}), slug="shell", name="Shell", program="bash", argv="bash\n{port}",
        environment="ours",
    )  # fmt: skip
    assert as_user(alice).post("/catalog/templates/new/?team=vision", given).status_code == 302
    assert Template.objects.get(name="Shell").environment.slug == "ours"


def test_preview_respects_the_cuda_version_of_the_environment(olga, team, sent):
    local_pool_with(node_info(gpus=1, cpu_milli=8000, memory_mib=32_768, cuda_version="12.4"))
    environment(name="Torch")
    assert built(only(sent), cuda="13.2", lock=LOCK.replace("numpy", "torch"))
    template = entries.create(
        actor=SYSTEM,
        model=Template,
        values={"slug": "torch", "name": "Torch", "program": "bash", "argv": ["bash", "{port}"]},
    )
    flavor = FlavorFactory(accelerator_count=1, cpu_milli=1000, memory_mib=1024)
    assert preview(olga, flavor, template).fits.nodes_ever == 1
    template = entries.change(actor=SYSTEM, entry=template, values={"environment": "torch"})
    assert preview(olga, flavor, template).fits.nodes_ever == 0


def test_card_and_workspace_page_show_the_environment(as_user, local_pool, team, bob, sent):
    made = ready(sent, name="Vision tools")
    template = TemplateFactory(
        slug="plots", name="Plots", program="jupyter-lab", argv=["jupyter-lab", "{port}"]
    )
    Template.objects.filter(pk=template.pk).update(environment=made)
    browser = as_user(bob)
    assert "Vision tools</span>" in browser.get("/workspaces/new/").content.decode()
    template.refresh_from_db()
    mine = create_workspace(actor=bob, team=team, template=template, flavor=FlavorFactory(), name="mine")
    page = browser.get(f"/workspaces/{mine.pk}/").content.decode()
    assert "Vision tools, version 1" in page
    assert "new workspaces get" not in page
    later = EnvironmentVersion.objects.get(environment=made)
    later.pk, later.number = None, 2
    later.save(force_insert=True)
    Environment.objects.filter(pk=made.pk).update(current=later)
    assert "new workspaces get version 2" in browser.get(f"/workspaces/{mine.pk}/").content.decode()
