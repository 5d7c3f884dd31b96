"""Pages of the catalog: forms, previews, versions, deletion, and hostile input."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from portal.catalog import documents, entries
from portal.catalog.models import Flavor, Template
from portal.common import etags
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import AllocatedDevice, Allocation, Device
from portal.scheduling import fits
from portal.web.catalog.forms import FlavorForm, TemplateForm, initial_values
from portal.web.catalog.previews import preview
from provisioning.share_messages import PROVIDES_SHARES
from tests.factories import (
    FlavorFactory,
    MembershipFactory,
    TemplateFactory,
    WorkspaceFactory,
    local_pool_with,
    node_info,
)

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def sent(form: Any, **changed: Any) -> dict[str, Any]:
    """The fields that a browser sends for an unchanged form."""
    data = {}
    for bound in form:
        value = bound.value()
        if value is True:
            data[bound.name] = "on"
        elif value is not None and value is not False:
            data[bound.name] = value
    return {**data, **changed}


def as_typed(model: Any, entry: Any = None, **more: Any) -> dict[str, Any]:
    document = documents.document_of(entry) if entry is not None else documents.document_of_new(model)
    form: Any = TemplateForm if isinstance(entry or model, Template) else FlavorForm
    return sent(form(initial=initial_values(document), changing=entry is not None), **more)


@pytest.mark.parametrize("slug", ["jupyterlab", "marimo", "vscode", "rstudio", "cpu-small"])
def test_unchanged_form_changes_nothing(as_user, olga, catalog, slug):
    model: Any = Flavor if slug == "cpu-small" else Template
    entry = model.objects.get(slug=slug)
    before = documents.document_of(entry)
    done = as_user(olga).post(f"/catalog/{model.__name__.lower()}s/{slug}/edit/", as_typed(None, entry))
    assert done.status_code == 302
    entry.refresh_from_db()
    assert documents.document_of(entry) == before


def test_operator_creates_a_flavor_and_sees_where_it_fits(as_user, olga, catalog):
    local_pool_with(node_info(gpus=2, cpu_milli=8000, memory_mib=32_768, provides=(PROVIDES_SHARES,)))
    blank = Flavor(cpu_milli=1000, memory_mib=2048)
    given = as_typed(
        blank, slug="half", name="Half", accelerator_count="1", accelerator_milli="50", cpu_milli="1,5"
    )
    shown = as_user(olga).post("/catalog/flavors/new/", {**given, "preview": "1"})
    assert shown.status_code == 200
    assert "Can start now, on 1 node." in shown.content.decode()
    assert not Flavor.objects.filter(slug="half").exists()
    assert as_user(olga).post("/catalog/flavors/new/", given)["Location"] == "/catalog/flavors/half/"
    made = Flavor.objects.get(slug="half")
    assert (made.cpu_milli, made.accelerator_milli, made.accelerator_count) == (1500, 500, 1)
    page = as_user(olga).get("/catalog/flavors/half/").content.decode()
    assert "0.5 GPU-hours" in page


def test_owner_is_redirected_to_the_form_of_the_team(as_user, alice, bob, team):
    away = as_user(alice).get("/catalog/templates/new/")
    assert away["Location"] == "/catalog/templates/new/?team=vision"
    page = as_user(alice).get(away["Location"]).content.decode()
    assert "Visible to Vision only." in page
    assert "service_workers" not in page
    assert 'name="audience"' not in page
    assert as_user(bob).get("/catalog/templates/new/").status_code == 403
    given = as_typed(
        Template(argv=[], env={}), slug="shell", name="Shell", program="bash", argv="bash\n{port}"
    )
    # Fields outside the form are ignored.
    given |= {"service_workers": "on", "audience": "all"}
    done = as_user(alice).post("/catalog/templates/new/?team=vision", given)
    assert done["Location"] == "/catalog/templates/vision_shell/"
    made = Template.objects.get(slug="vision_shell")
    assert (made.team, made.service_workers, made.argv) == (team, False, ["bash", "{port}"])


def test_concurrent_change_names_the_editor(as_user, olga, ada, catalog):
    entry = Template.objects.get(slug="marimo")
    mine = as_typed(None, entry, name="Mine")
    mine["version"] = etags.version_of(entry)
    entries.change(actor=ada, entry=entry, values={"name": "Hers"})
    late = as_user(olga).post("/catalog/templates/marimo/edit/", mine)
    assert late.status_code == 400
    assert "ada changed “" in late.content.decode()
    entry.refresh_from_db()
    assert entry.name == "Hers"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("argv", "[1, 2"),
        ("argv", "bash"),
        ("env", "NO EQUALS"),
        ("env", '{"A": 1}'),
        ("env", "LD_PRELOAD=/x"),
        ("start_timeout_s", "soon"),
        ("slug", "No Slug"),
        ("open_path", "//evil"),
        ("teams", "nonesuch"),
        ("successor", "nonesuch"),
        ("name", EVIL * 3),
    ],
)
def test_invalid_input_is_marked_and_kept(as_user, olga, field, value):
    given = as_typed(
        Template(argv=[], env={}), slug="shell", name="Shell", program="bash", argv="bash\n{port}"
    )
    given |= {"audience": "teams"} if field == "teams" else {}
    page = as_user(olga).post("/catalog/templates/new/", {**given, field: value})
    assert page.status_code == 400
    html = page.content.decode()
    assert 'aria-live="polite"><span class="problem">' in html.split(f'id="id_{field}_error"')[1][:200]
    assert "<script>alert" not in html
    assert not Template.objects.exists()


def test_hostile_text_is_escaped(as_user, alice, bob, team, catalog):
    local_pool_with(node_info())
    given = {
        "slug": "evil",
        "name": EVIL[:80],
        "description": EVIL,
        "program": "bash",
        "install_hint": EVIL,
        "argv": ["bash", "{port}", EVIL],
        "env": {"A": EVIL},
        "startup": EVIL,
    }
    made = entries.create(actor=alice, model=Template, values=given, team=team)
    entries.change(actor=alice, entry=made, values={"env": {"B": EVIL}})
    for person in (alice, bob):
        for url in ("/catalog/templates/", "/catalog/templates/vision_evil/", "/workspaces/new/"):
            html = as_user(person).get(url).content.decode()
            assert "alert(1)" in html
            assert "<script>alert" not in html
            assert "<img src=x" not in html
    html = as_user(alice).get("/catalog/templates/vision_evil/edit/").content.decode()
    assert "<script>alert" not in html


def test_members_see_neither_command_nor_versions(as_user, alice, bob, charlie, team):
    given = {
        "slug": "t",
        "name": "T",
        "program": "bash",
        "argv": ["bash", "{port}", "--inner"],
        "env": {"A_HUSHED_SECRET": "1"},
    }
    entries.create(actor=alice, model=Template, values=given, team=team)
    seen = as_user(bob).get("/catalog/templates/vision_t/").content.decode()
    assert "--inner" not in seen
    assert "A_HUSHED_SECRET" not in seen
    assert "Versions" not in seen
    for path in ("", "edit/", "delete/", "versions/1/restore/"):
        assert as_user(charlie).get(f"/catalog/templates/vision_t/{path}").status_code == 404
        if path:
            assert as_user(bob).get(f"/catalog/templates/vision_t/{path}").status_code == 403
    # Nor by copying it.
    assert as_user(charlie).get("/catalog/templates/new/?team=robots&of=vision_t").status_code == 404


def test_member_cannot_copy_a_template_without_edit_permission(as_user, alice, charlie, team):
    given = {"slug": "t", "name": "T", "program": "bash", "argv": ["bash", "{port}", "--inner"]}
    entries.create(actor=alice, model=Template, values=given, team=team)
    MembershipFactory(team=team, user=charlie)
    assert as_user(charlie).get("/catalog/templates/new/?team=robots&of=vision_t").status_code == 403


def test_the_list_counts_workspaces_for_those_who_see_all(as_user, olga, bob, team, catalog):
    flavor = Flavor.objects.get(slug="cpu-small")
    for state in ("pending", "failed", "terminated"):
        WorkspaceFactory(owner=bob, team=team, flavor=flavor, state=state)
    link = '<a href="/workspaces/?flavor=cpu-small">2</a>'
    assert link in as_user(olga).get("/catalog/flavors/").content.decode()
    assert as_user(olga).get("/workspaces/?flavor=cpu-small").context["count"] == 2
    assert "?flavor=cpu-small" not in as_user(bob).get("/catalog/flavors/").content.decode()


def test_delete_page_lists_users_of_the_entry(as_user, olga, bob, team, catalog):
    WorkspaceFactory(owner=bob, team=team, template=Template.objects.get(slug="marimo"), name="bobs")
    page = as_user(olga).get("/catalog/templates/marimo/delete/").content.decode()
    assert "bobs of bob" in page
    refused = as_user(olga).post("/catalog/templates/marimo/delete/", follow=True).content.decode()
    assert "in use by 1 workspace" in refused
    assert Template.objects.filter(slug="marimo", deleted_at=None).exists()
    assert as_user(olga).post("/catalog/templates/vscode/delete/")["Location"] == "/catalog/templates/"
    assert not Template.objects.filter(slug="vscode", deleted_at=None).exists()


def test_version_is_restored_after_confirmation(as_user, olga, catalog):
    entry = Template.objects.get(slug="marimo")
    entries.change(actor=olga, entry=entry, values={"description": "Ours"})
    page = as_user(olga).get("/catalog/templates/marimo/versions/1/restore/").content.decode()
    assert "Ours → Reactive Python notebooks" in page
    as_user(olga).post("/catalog/templates/marimo/versions/1/restore/")
    entry.refresh_from_db()
    assert entry.description.startswith("Reactive")
    assert as_user(olga).get("/catalog/templates/marimo/versions/9/restore/").status_code == 404


# --- previews ---------------------------------------------------------------------------------------


def test_preview_shows_the_number_of_nodes_that_fit(olga, team, catalog):
    local_pool_with(*(node_info(f"node-{n}") for n in range(3)))
    found = preview(olga, Flavor.objects.get(slug="cpu-small"), Template.objects.get(slug="jupyterlab"), team)
    assert found.sentence == "For Vision: starts now, on 3 nodes."
    (fit,) = found.fits.pools
    assert (fit.nodes_now, fit.nodes_ever, fit.starts_now) == (3, 3, 24)


def test_preview_counts_devices_that_fit_now_and_when_empty(olga, alice, team, catalog, as_user, api_of):
    guards = {"provides": (PROVIDES_SHARES,)}
    pool = local_pool_with(node_info("one", gpus=2, **guards), node_info("two", gpus=4, **guards))
    local_pool_with(node_info("none"), slug="without")
    held = Device.objects.filter(node__name="two").order_by("index").first()
    allocation = Allocation.objects.create(
        workspace=WorkspaceFactory(owner=alice, team=team),
        node=held.node,
        generation=1,
        granted_at=timezone.now(),
        cpu_milli=1000,
        memory_mib=1024,
    )
    AllocatedDevice.objects.create(allocation=allocation, device=held)
    half = FlavorFactory(cpu_milli=1000, memory_mib=1024, accelerator_count=1, accelerator_milli=500)
    four = FlavorFactory(cpu_milli=1000, memory_mib=1024, accelerator_count=4)
    for flavor, now, ever in ((half, 5, 6), (four, 0, 4)):
        found = {fit.pool.slug: fit for fit in preview(olga, flavor).fits.pools}
        assert (found[pool.slug].devices_now, found[pool.slug].devices_ever) == (now, ever)
        assert (found["without"].devices_now, found["without"].devices_ever) == (0, 0)
    page = as_user(olga).get(f"/catalog/flavors/{half.slug}/").content.decode()
    assert "Available devices" in page
    assert "5 now, 6 in total" in page
    plain = as_user(olga).get("/catalog/flavors/cpu-small/").content.decode()
    assert "Nodes with capacity now" in plain
    assert "Available devices" not in plain
    answer = api_of(olga, {"flavor": half.slug}).json()
    assert [(row["devices_now"], row["devices_ever"]) for row in answer["pools"]] == [(5, 6), (0, 0)]


def test_preview_does_not_change_the_snapshot(olga, team, catalog):
    local_pool_with(node_info(cpu_milli=4000))
    flavor, template = Flavor.objects.get(slug="cpu-small"), Template.objects.get(slug="jupyterlab")
    first, second = (fits.fit_flavor(flavor, template) for _ in range(2))
    assert first == second
    assert first.pools[0].starts_now == 4


def test_impossible_request_is_reported(olga, catalog):
    local_pool_with(node_info())
    large = FlavorFactory(cpu_milli=900_000)
    assert preview(olga, large).sentence == "No node is suitable."
    held = FlavorFactory(accelerator_count=1, accelerator_model="None such")
    assert preview(olga, held).fits.nodes_ever == 0


def test_team_without_access_is_refused(olga, team, charlie, catalog):
    local_pool_with(node_info())
    flavor = Flavor.objects.get(slug="cpu-small")
    flavor = entries.change(actor=SYSTEM, entry=flavor, values={"teams": ["robots"]})
    found = preview(olga, flavor, Template.objects.get(slug="jupyterlab"), team)
    assert found.verdict is None
    assert "is not available to team Vision" in found.sentence


def test_draft_preview_needs_permission_to_create_the_entry(api_of, olga, bob, team, catalog):
    local_pool_with(node_info())
    draft = {"slug": "x", "name": "X", "resources": {"cpu_milli": 100, "memory_mib": 128}}
    body = {"team": "vision", "template": "jupyterlab", "flavor_draft": draft}
    assert api_of(bob, body).status_code == 403
    shown = api_of(olga, body).json()
    assert shown["verdict"]["outcome"] == "fits_now"
    assert shown["message"] == "For Vision: starts now, on 1 node."
    assert not Flavor.objects.filter(slug="x").exists()
    lacking = api_of(olga, {"team": "vision"})
    assert (lacking.status_code, list(lacking.json()["errors"])) == (400, ["flavor"])


@pytest.fixture
def api_of(with_token):
    def ask(user: Any, body: Any) -> Any:
        return with_token(user).post("/api/v1/catalog/preview", body, content_type="application/json")

    return ask


# --- many entries ---------------------------------------------------------------------------------


@pytest.mark.thorough("a thousand entries")
def test_lists_of_1000_entries_are_paged(as_user, olga, bob, team, catalog, django_assert_max_num_queries):
    local_pool_with(node_info())
    Template.objects.bulk_create(
        TemplateFactory.build(slug=f"t{n:04}", name=f"T {n:04}") for n in range(1000)
    )
    Flavor.objects.bulk_create(FlavorFactory.build(slug=f"f{n:04}", name=f"F {n:04}") for n in range(1000))
    for person in (olga, bob):
        for url in ("/catalog/templates/", "/catalog/flavors/?q=f0999", "/catalog/templates/?page=20"):
            client = as_user(person)
            client.get(url)
            with django_assert_max_num_queries(25):
                page = client.get(url)
            assert page.status_code == 200
    found = as_user(olga).get("/catalog/flavors/?q=F+0999").content.decode()
    assert "f0999" in found
    assert "f0998" not in found
    html = as_user(bob).get("/workspaces/new/").content.decode()
    assert html.count('name="flavor"') == 48
    assert "more not shown. Search to find them." in html
    html = as_user(bob).get("/workspaces/new/?find=f0777&flavor=f0777").content.decode()
    assert 'value="f0777" checked' in html


def test_startup_script_gets_unix_line_ends(as_user, olga, catalog):
    local_pool_with(node_info())
    source = Template.objects.get(slug="jupyterlab")
    typed = as_typed(None, source) | {"slug": "mine", "startup": "echo a > a.txt\r\necho b > b.txt\r\n"}
    assert as_user(olga).post("/catalog/templates/new/", typed).status_code == 302
    assert Template.objects.get(slug="mine").startup == "echo a > a.txt\necho b > b.txt\n"


def test_form_lists_the_folders_that_nodes_offer(as_user, olga, alice, team, catalog):
    assert "No node provides folders yet." in as_user(olga).get("/catalog/templates/new/").content.decode()
    shown = ("rdma", "mount:imagenet", "mount:scratch")
    local_pool_with(node_info("reads", provides=shown), node_info("writes", provides=("mount:scratch:rw",)))
    page = as_user(olga).get("/catalog/templates/new/").content.decode()
    assert "Nodes provide imagenet, scratch:rw." in page
    # A team's own template names no folders.
    assert "imagenet" not in as_user(alice).get("/catalog/templates/new/?team=vision").content.decode()
