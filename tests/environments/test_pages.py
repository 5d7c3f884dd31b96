"""Pages of environments: lists, versions, logs, forms, and the choice for a workspace."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.catalog.environments import changes, curated, services, upkeep
from portal.catalog.environments.models import Environment, EnvironmentVersion
from portal.catalog.models import Template
from portal.common import etags
from portal.common.actors import SYSTEM
from portal.workspaces.models import Workspace
from provisioning.environment_messages import FailedLine, Package
from tests import sites
from tests.environments.helpers import LOCK, build_of, built, environment, failed, only, progress, ready
from tests.factories import MembershipFactory, TeamFactory, UserFactory

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
HARM = "<script>alert(1)</script>"


def test_list_of_1000_is_paged_and_searched_with_few_queries(team, bob, as_user):
    now = timezone.now()
    Environment.objects.bulk_create(
        Environment(slug=f"env-{n}", name=f"Tools {n}", updated_at=now) for n in range(1000)
    )
    browser = as_user(bob)
    browser.get("/environments/")
    with CaptureQueriesContext(connection) as queries:
        page = browser.get("/environments/")
    assert page.content.decode().count("<tr>") == 51
    assert len(queries) <= 25
    found = browser.get("/environments/?q=tools+999").content.decode()
    assert "Tools 999" in found
    assert found.count("<tr>") == 2


def test_environment_of_another_team_is_on_no_page(team, alice, local_pool, sent, as_user):
    made = environment(team=team, name="Secret", actor=alice)
    build = build_of(only(sent))
    other = MembershipFactory(team=TeamFactory(slug="audio"), user=UserFactory(), role="owner")
    mine = environment(team=other.team, name="Mine")
    browser = as_user(other.user)
    assert "Secret" not in browser.get("/environments/").content.decode()
    for path in ("", "edit/", "delete/", "build/", f"builds/{build.pk}/", f"builds/{build.pk}/cancel/"):
        assert browser.get(f"/environments/secret/{path}").status_code == 404
    assert browser.get(f"/environments/{mine.slug}/builds/{build.pk}/").status_code == 404
    assert browser.post(f"/environments/{mine.slug}/builds/{build.pk}/cancel/").status_code == 404
    form = browser.get("/workspaces/new/").content.decode()
    assert "Secret" not in form
    assert made.slug == "secret"


def test_logs_and_names_are_escaped(team, alice, local_pool, sent, as_user):
    made = environment(name=f"Tools {HARM}", slug="tools", team=team, actor=alice)
    command = only(sent)
    progress(command, log=f"ok\n{HARM} \x1b[31mred\x1b]8;;javascript:alert(1)\x07x\x1b]8;;\x07\nlast\n")
    browser = as_user(alice)
    shown = browser.get(f"/environments/tools/builds/{command.build}/").content.decode()
    assert "alert(1)&lt;/script&gt; redx" in shown
    assert HARM not in shown
    assert "\x1b" not in shown
    built(command, packages=(Package(HARM[:50], "1"),))
    for path in ("", "edit/", "delete/"):
        assert HARM not in browser.get(f"/environments/tools/{path}").content.decode()
    assert HARM not in browser.get("/environments/").content.decode()
    assert made.slug == "tools"


def test_failed_line_is_marked_in_the_log(local_pool, sent, olga, as_user):
    environment(slug="tools")
    command = only(sent)
    progress(command, "resolving", log="one\nno-such-package was not found\ntwo\n")
    failed(command, "resolution_failed", failed_line=FailedLine(1, "no-such-package was not found"))
    shown = as_user(olga).get(f"/environments/tools/builds/{command.build}/").content.decode()
    assert "no-such-package was not found</mark>" in shown
    assert shown.count('<mark class="wrong"') == 1


def test_build_log_is_sent_as_a_file(local_pool, sent, olga, as_user):
    environment(slug="tools")
    command = only(sent)
    progress(command, "resolving", log=f"one\n{HARM}\n")
    browser = as_user(olga)
    path = f"/environments/tools/builds/{command.build}/log/download/"
    assert f'href="{path}"' in browser.get(f"/environments/tools/builds/{command.build}/").content.decode()
    answer = browser.get(path)
    assert answer.content.decode() == f"one\n{HARM}\n"
    assert answer["Content-Disposition"] == 'attachment; filename="tools-1-node-1.log"'
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_differences_are_described(local_pool, sent, olga, as_user):
    made = ready(sent, slug="tools")
    services.rebuild(actor=SYSTEM, environment=made)
    packages = (Package("numpy", "2.2.0", 1), Package("pandas", "2.2.3", 1))
    built(only(sent), lock=LOCK.replace("2.1.0", "2.2.0"), packages=packages, size_mib=314)
    old, new = EnvironmentVersion.objects.order_by("number")
    said = "numpy 2.1.0 → 2.2.0, pandas added, 14 MiB larger"
    assert changes.compare_versions(old, new).sentence == said
    assert (
        changes.compare_versions(new, old).sentence == "numpy 2.2.0 → 2.1.0, pandas removed, 14 MiB smaller"
    )
    assert not changes.compare_versions(new, new)
    assert said in as_user(olga).get("/environments/tools/").content.decode()


def test_environment_is_created_by_a_form_with_a_file(team, alice, local_pool, sent, as_user):
    upload = SimpleUploadedFile("pyproject.toml", b"[project]\ndependencies = ['polars']\n")
    data = {"name": "Frames", "team": "vision", "source_kind": "packages", "python": "3.12", "file": upload}
    answer = as_user(alice).post("/environments/new/", data)
    assert answer.status_code == 302
    version = Environment.objects.get(slug="frames").versions.get()
    assert version.source_kind == "pyproject"
    wrong = as_user(alice).post(
        "/environments/new/",
        {**data, "file": SimpleUploadedFile("requirements.txt", b"-r /etc/passwd")},
    )
    assert wrong.status_code == 400
    assert (
        "Line 1 refers to another file: -r /etc/passwd. Paste the lines of that file instead."
        in wrong.content.decode()
    )


def test_outdated_change_is_shown_and_not_saved(team, alice, local_pool, as_user):
    made = environment(team=team, slug="tools", actor=alice)
    seen = etags.version_of(made)
    services.change(actor=SYSTEM, environment=made, description="By Berth")
    answer = as_user(alice).post(
        "/environments/tools/edit/", {"do": "about", "name": "New", "version": seen, "enabled": "on"}
    )
    assert answer.status_code == 412
    assert "Berth changed “" in answer.content.decode()
    made.refresh_from_db()
    assert made.name != "New"


def test_workspace_form_offers_environments_and_remembers_the_choice(team, bob, local_pool, sent, as_user):
    ready(sent, name="Tools", slug="tools")
    environment(name="Later", slug="later", source="pandas")
    browser = as_user(bob)
    shown = browser.get("/workspaces/new/").content.decode()
    assert '<option\n          value="tools">Tools' in shown
    assert "Later – “Later” is being built" in shown
    data = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision", "environment": "tools"}
    assert browser.post("/workspaces/new/", {**data, "name": "a", "start": "1"}).status_code == 302
    assert Workspace.objects.get().environment_version.environment.slug == "tools"
    assert 'value="tools" selected' in browser.get("/workspaces/new/").content.decode()
    assert 'name="environment" value="tools"' in browser.get("/").content.decode()
    refused = browser.post("/workspaces/new/", {**data, "environment": "later", "name": "b", "start": "1"})
    assert refused.status_code == 409


def test_home_page_shows_build_progress_of_data_science(
    team, bob, olga, local_pool, sent, as_user, settings, clock
):
    settings.BERTH_SKIP_DATA_SCIENCE = False
    curated.ensure()
    Template.objects.filter(slug="jupyterlab").update(
        environment=Environment.objects.get(slug=curated.DATA_SCIENCE)
    )
    upkeep.sweep()
    command = only(sent)
    progress(command, "downloading", done=6, total=10)
    shown = as_user(bob).get("/").content.decode()
    assert "40 %. Until it is ready" in shown
    form = as_user(bob).get("/workspaces/new/").content.decode()
    # Card, list and summary name the environment that a start takes.
    assert "Minimal · Data science is being built: 40 %" in form
    assert "As the template: Minimal" in form
    assert "<dt>Environment</dt><dd>Minimal</dd>" in form
    failed(command, "index_unreachable")
    assert "Data science" not in as_user(bob).get("/").content.decode()
    assert "cannot reach the package index" in as_user(olga).get("/").content.decode()
    clock.shift(61)
    upkeep.sweep()
    built(only(sent))
    for user in (bob, olga):
        assert "Data science" not in as_user(user).get("/").content.decode()


def test_source_error_links_its_owner_to_the_form(local_pool, sent, olga, bob, as_user):
    made = environment(slug="tools", source="numpy\nno-such-thing\n", actor=olga)
    command = only(sent)
    line = "Because no-such-thing was not found in the package registry, it cannot be resolved."
    failed(command, "no_such_package", failed_line=FailedLine(2, line))
    browser = as_user(olga)
    for path in ("", f"builds/{command.build}/"):
        shown = browser.get(f"/environments/tools/{path}").content.decode()
        assert "The package index has no package “no-such-thing” in line 2." in shown
        assert '<mark class="wrong-line">no-such-thing</mark>' in shown
        assert "/environments/tools/edit/#id_source" in shown
    assert "no-such-thing</mark>" in browser.get("/environments/tools/edit/").content.decode()
    assert "/environments/tools/edit/" not in as_user(bob).get("/environments/tools/").content.decode()
    services.change_source(actor=olga, environment=made, source_kind="packages", source="numpy\n")
    old = browser.get(f"/environments/tools/builds/{command.build}/").content.decode()
    assert "wrong-line" not in old  # the list has changed
    built(only(sent))
    ready_page = browser.get("/environments/tools/").content.decode()
    assert "/workspaces/new/?environment=tools" in ready_page
    assert "/catalog/templates/new/?environment=tools" in ready_page


def test_other_build_errors_offer_retry_instead_of_the_form(local_pool, sent, olga, as_user):
    environment(slug="tools", actor=olga)
    failed(only(sent), "disk_full")
    page = as_user(olga).get("/environments/tools/").content.decode()
    assert '/environments/tools/edit/#id_source">' not in page.split('id="mending"')[1].split("</section>")[0]
    assert "Try again" in page


def test_new_template_for_an_environment_copies_a_compatible_template(
    local_pool, sent, olga, alice, team, as_user
):
    ready(sent, slug="tools")
    form = as_user(olga).get("/catalog/templates/new/?environment=tools").content.decode()
    assert '<option value="tools" selected' in form
    assert '<option value="jupyterlab" selected' in form.replace("\n    value", " value")
    assert "jupyter-lab" in form
    empty = as_user(olga).get("/catalog/templates/new/?environment=tools&of=").content.decode()
    assert 'name="program" value=' not in empty
    # Team owners may not read the site's commands, so theirs start empty.
    hers = as_user(alice).get(f"/catalog/templates/new/?environment=tools&team={team.slug}").content.decode()
    assert '<option value="tools" selected' in hers and "Copy of JupyterLab" not in hers


def test_default_value_follows_the_template(local_pool, sent, team, bob, make, as_user):
    ready(sent, slug="tools")
    Template.objects.filter(slug="marimo").update(environment=Environment.objects.get(slug="tools"))
    make(bob, environment=Environment.objects.get(slug="tools"))
    browser = as_user(bob)
    form = browser.get("/workspaces/new/").content.decode()
    assert 'name="kept_environment" value="tools:jupyterlab"' in form
    asked = {"environment": "tools", "kept_environment": "tools:jupyterlab", "template": "marimo"}
    kept = browser.get("/workspaces/new/", asked).content.decode()
    assert 'name="kept_environment" value="-:marimo"' in kept
    chosen = browser.get("/workspaces/new/", asked | {"kept_environment": ""}).content.decode()
    assert 'value="tools" selected' in chosen.replace("\n          value", " value")
    assert 'name="kept_environment" value=""' in chosen
