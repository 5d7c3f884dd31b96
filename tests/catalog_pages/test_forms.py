"""Forms of templates and flavors: sections, presets and live checks."""

from __future__ import annotations

import re
from typing import Any

import pytest

from portal.catalog.models import Template
from portal.web.catalog import presets, sections
from portal.web.catalog.forms import FlavorForm, TemplateForm, initial_values
from tests.factories import local_pool_with, node_info
from tests.ui.forms import filled

pytestmark = pytest.mark.django_db
NEW = {"template": "/catalog/templates/new/", "flavor": "/catalog/flavors/new/"}


def check(client: Any, url: str, fields: dict[str, Any], changed: str) -> str:
    """The response to a changed field, requested as by htmx."""
    headers = {"HX-Request": "true", "HX-Target": "form-preview", "HX-Trigger-Name": changed}
    page = client.post(url, fields, headers=headers)
    assert page.status_code == 200
    return str(page.content.decode())


def problems_in(html: str) -> set[str]:
    """The fields with errors in this response."""
    return set(re.findall(r'id="id_(\w+?)_error" hx-swap-oob="innerHTML"><span class="problem"', html))


@pytest.mark.parametrize("kind", ["template", "flavor"])
def test_new_form_shows_five_fields_and_hides_the_rest_in_one_section(kind):
    form = {"template": TemplateForm, "flavor": FlavorForm}[kind](
        initial=initial_values(sections.new_document(kind))
    )
    shown = sections.sections_of(form)
    names = [field.name for field in sections.basics_of(form)]
    assert len(names) == 5
    names += [field.name for section in shown for field in section.fields]
    assert sorted(names) == sorted(set(form.fields) - {"version"})
    assert [(section.open, section.summary) for section in shown] == [(False, "Defaults")] * len(shown)


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.key)
def test_preset_template_can_be_created_unchanged(as_user, olga, preset):
    html = as_user(olga).get(f"{NEW['template']}?preset={preset.key}").content.decode()
    _, fields = filled(html, "argv")
    done = as_user(olga).post(NEW["template"], fields | {"slug": "mine", "name": "Mine"})
    assert done.status_code == 302
    created = Template.objects.get(slug="mine")
    assert (created.argv, created.ready_path) == (preset.document["argv"], preset.document["ready_path"])


def test_section_with_an_error_opens_with_its_field_focused(as_user, olga):
    html = as_user(olga).get(f"{NEW['template']}?preset=jupyterlab").content.decode()
    assert "4 set: Readiness path /api, Start path /lab, App sign-in Authorization: Bearer …, …" in html
    _, fields = filled(html, "argv")
    sent = fields | {"slug": "mine", "open_path": "//evil", "description": "Kept"}
    html = as_user(olga).post(NEW["template"], sent).content.decode()
    opened = re.findall(r'<details class="form-section" open>.*?id="set-(\w+)"', html, re.DOTALL)
    assert opened == ["app"]
    controls = re.findall(r"<(?:input|select|textarea)[^>]*>", html)
    focused = [tag for tag in controls if " autofocus" in tag and 'id="id_' in tag]
    assert [re.search(r'name="(\w+)"', tag)[1] for tag in focused] == ["open_path"]
    assert filled(html, "argv")[1]["description"] == ["Kept"]


def test_live_check_reports_errors_of_the_form_and_the_service(as_user, olga):
    client = as_user(olga)
    fields = filled(client.get(NEW["template"]).content.decode(), "argv")[1]
    # Fields not reached yet are not reported.
    html = check(client, NEW["template"], fields | {"open_path": "//evil", "name": "Mine"}, "open_path")
    assert problems_in(html) == set()
    assert problems_in(check(client, NEW["template"], fields, "name")) == {"name"}
    whole = fields | {
        "name": "Mine",
        "slug": "mine",
        "program": "bash",
        "argv": "bash",
        "open_path": "//evil",
    }
    html = check(client, NEW["template"], whole, "open_path")
    assert problems_in(html) == {"argv", "open_path"}
    assert '<span class="name">Mine</span>' in html
    assert not Template.objects.exists()


def test_live_check_of_a_flavor_shows_where_it_starts(as_user, olga, bob):
    local_pool_with(node_info(gpus=2))
    fields = filled(as_user(olga).get(NEW["flavor"]).content.decode(), "cpu_milli")[1]
    fields |= {"name": "Pair", "slug": "pair", "accelerator_count": "2", "accelerator_models": "H100"}
    html = check(as_user(olga), NEW["flavor"], fields, "accelerator_models")
    assert "2 × H100, 1 core, 2 GiB" in html
    assert "1 set: Models H100" in html
    assert "Can start now" in html or "No node is suitable." in html
    headers = {"HX-Request": "true", "HX-Target": "form-preview"}
    assert as_user(bob).post(NEW["flavor"], fields, headers=headers).status_code == 403
