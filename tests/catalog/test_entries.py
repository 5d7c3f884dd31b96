"""Templates and flavors: creation, changes, versions, deletion, and attacks."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.catalog import documents, entries, rules, selectors
from portal.catalog.codes import CatalogCode
from portal.catalog.models import Flavor, Template
from portal.catalog.services import ensure_accelerator_flavors, ensure_starting_catalog
from portal.common import etags
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PreconditionFailed, StateConflict
from portal.common.events.models import Event
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.people.accounts.models import Membership, Role, Team
from portal.workspaces import dispatch, services
from portal.workspaces.lifecycle import State
from tests.factories import (
    FlavorFactory,
    TeamFactory,
    TemplateFactory,
    WorkspaceFactory,
    create_workspace,
    local_pool_with,
    node_info,
)

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
SHELL: dict[str, Any] = {
    "slug": "shell",
    "name": "Shell",
    "program": "bash",
    "argv": ["bash", "serve", "--port={port}", "--token-file={token_file}"],
}
SIZE: dict[str, Any] = {"slug": "tiny", "name": "Tiny", "cpu_milli": 500, "memory_mib": 512}


def make(actor: Any, team: Team | None = None, **given: Any) -> Template:
    return entries.create(actor=actor, model=Template, values={**SHELL, **given}, team=team)


def size(actor: Any = SYSTEM, **given: Any) -> Flavor:
    return entries.create(actor=actor, model=Flavor, values={**SIZE, **given})


def codes(refused: Any, field: str) -> list[str]:
    return [getattr(each, "code", each) for each in refused.value.extra["errors"].get(field, [])]


# --- permissions ----------------------------------------------------------------------------------


def test_operator_creates_an_entry_for_all_teams(olga, bob, charlie, team):
    made = make(olga, env={"PAGER": "less"}, startup="echo hello")
    assert made.team is None
    for actor in (bob, charlie):
        assert selectors.template_by_slug(actor, "shell") == made
    event = Event.objects.get(kind="template.created")
    assert (event.actor, event.data["template"]) == (olga, "shell")


def test_owner_creates_a_template_for_the_team(alice, bob, charlie, olga, team):
    made = make(alice, team)
    assert (made.slug, made.team) == ("vision_shell", team)
    assert selectors.template_by_slug(bob, "vision_shell") == made
    assert selectors.template_by_slug(olga, "vision_shell") == made
    with pytest.raises(NotFound) as unknown:
        selectors.visible_template(charlie, "nonesuch")
    with pytest.raises(NotFound) as hidden:
        selectors.visible_template(charlie, "vision_shell")
    assert hidden.value.reason.code == unknown.value.reason.code
    assert hidden.value.reason.params["known"] == unknown.value.reason.params["known"]
    with pytest.raises(InvalidInput):
        selectors.template_by_slug(charlie, "vision_shell")


def test_only_owners_and_operators_create_templates_and_only_operators_flavors(alice, bob, charlie, team):
    for actor in (bob, charlie):
        with pytest.raises(NotAllowed):
            make(actor, team)
    for actor in (alice, bob):
        with pytest.raises(NotAllowed):
            make(actor)
        with pytest.raises(NotAllowed):
            size(actor)
    assert not Template.objects.exists()


def test_equal_names_in_two_teams_stay_separate(alice, charlie, team):
    robots = Team.objects.get(slug="robots")
    assert make(alice, team).slug == "vision_shell"
    assert make(charlie, robots).slug == "robots_shell"
    # Slugs always have the prefix of the own team.
    assert make(charlie, robots, slug="vision_shell2".replace("_", "-")).slug == "robots_vision-shell2"
    with pytest.raises(InvalidInput):
        make(charlie, robots, slug="vision_shell")


def test_site_slugs_never_use_the_prefix_of_a_team(olga, team):
    with pytest.raises(InvalidInput) as refused:
        make(olga, slug="vision_shell")
    assert codes(refused, "slug") == [CatalogCode.SLUG_OF_OTHER_TEAM]


def test_slug_is_unique_and_reusable_after_deletion(olga):
    made = make(olga)
    with pytest.raises(StateConflict) as refused:
        make(olga)
    assert refused.value.code == "slug_taken"
    entries.delete(actor=olga, entry=made)
    again = make(olga)
    assert again.pk != made.pk
    assert Template.objects.filter(slug="shell").count() == 2


def test_allowed_teams_can_be_set(olga, bob, charlie, team):
    made = make(olga, teams=["robots"])
    assert documents.document_of(made)["teams"] == ["robots"]
    assert selectors.template_by_slug(charlie, "shell")
    with pytest.raises(InvalidInput):
        selectors.template_by_slug(bob, "shell")
    made = entries.change(actor=olga, entry=made, values={"teams": []})
    with pytest.raises(InvalidInput):
        selectors.template_by_slug(charlie, "shell")
    made = entries.change(actor=olga, entry=made, values={"teams": None})
    assert selectors.template_by_slug(bob, "shell")


def test_member_of_two_teams_charges_the_chosen_one(olga, bob, team, catalog):
    local_pool_with(node_info())
    audio = TeamFactory(slug="audio")
    Membership.objects.create(team=audio, user=bob, role=Role.MEMBER)
    mine = make(olga, teams=["audio"])
    big = size(olga, teams=["audio"])
    plain = Flavor.objects.get(slug="cpu-small")
    jupyter = Template.objects.get(slug="jupyterlab")
    for template, flavor in ((mine, plain), (jupyter, big)):
        with pytest.raises(NotAllowed) as refused:
            create_workspace(actor=bob, team=team, template=template, flavor=flavor)
        assert refused.value.reason.code in (
            CatalogCode.TEMPLATE_NOT_FOR_TEAM,
            CatalogCode.FLAVOR_NOT_FOR_TEAM,
        )
    assert create_workspace(actor=bob, team=audio, template=mine, flavor=big).pk


def test_lost_access_prevents_a_restart(olga, bob, team, catalog):
    local_pool_with(node_info())
    template = make(olga)
    stopped = WorkspaceFactory(owner=bob, team=team, template=template, state=State.STOPPED)
    entries.change(actor=olga, entry=template, values={"teams": ["vision"]})
    Template.objects.get(pk=template.pk).teams.clear()
    with pytest.raises(NotAllowed):
        services.start(actor=bob, workspace_id=stopped.pk)


def test_former_owner_cannot_change_templates(alice, team, olga):
    made = make(alice, team)
    Membership.objects.filter(user=alice).update(role=Role.MEMBER)
    for act in (
        lambda: entries.change(actor=alice, entry=made, values={"name": "Mine"}),
        lambda: entries.delete(actor=alice, entry=made),
        lambda: entries.restore(actor=alice, entry=made, number=1),
    ):
        with pytest.raises(NotAllowed):
            act()


# --- allowed values of a template -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("argv", ["bash", "{prot}", "{port}"], CatalogCode.PLACEHOLDER_UNKNOWN),
        ("argv", ["bash"], CatalogCode.PORT_MISSING),
        ("argv", "bash {port}", CatalogCode.ARGV_INVALID),
        ("argv", ["bash", 7], CatalogCode.ARGV_INVALID),
        ("argv", [" ", "{port}"], CatalogCode.ARGV_INVALID),
        ("argv", ["{home}/bin/evil", "{port}"], CatalogCode.ARGV_INVALID),
        ("argv", ["bash", "{port}", "a\0b"], CatalogCode.SIGN_NOT_ALLOWED),
        ("argv", ["bash", "{port}", "\ud800"], CatalogCode.SIGN_NOT_ALLOWED),
        ("argv", ["bash", "{port}", "x" * 20_000], CatalogCode.TOO_LARGE),
        ("argv", ["bash", "{port}"] * 60, CatalogCode.ARGV_INVALID),
        ("argv", ["bash", "{port}", "ghp_" + "a" * 36], CatalogCode.SECRET_FOUND),
        ("startup", "export T=glpat-" + "a" * 20, CatalogCode.SECRET_FOUND),
        ("startup", "a\0b", CatalogCode.SIGN_NOT_ALLOWED),
        ("env", {"A=B": "1"}, CatalogCode.ENV_NAME_INVALID),
        ("env", {"": "1"}, CatalogCode.ENV_NAME_INVALID),
        ("env", {"1A": "1"}, CatalogCode.ENV_NAME_INVALID),
        ("env", {"A\n": "1"}, CatalogCode.ENV_NAME_INVALID),
        ("env", {"A": "a\0"}, CatalogCode.SIGN_NOT_ALLOWED),
        ("env", {"A": 1}, CatalogCode.ENV_INVALID),
        ("env", {f"A{n}": "" for n in range(200)}, CatalogCode.ENV_INVALID),
        ("env", {"A": "x" * 9000}, CatalogCode.TOO_LARGE),
        # Variables that expose devices, load code into child processes, or impersonate workspaces.
        ("env", {"NVIDIA_VISIBLE_DEVICES": "all"}, CatalogCode.ENV_NAME_RESERVED),
        ("env", {"CUDA_VISIBLE_DEVICES": "0,1"}, CatalogCode.ENV_NAME_RESERVED),
        ("env", {"cuda_visible_devices": "0"}, CatalogCode.ENV_NAME_RESERVED),
        ("env", {"LD_PRELOAD": "/tmp/evil.so"}, CatalogCode.ENV_NAME_RESERVED),
        ("env", {"BERTH_WORKSPACE": "ws-of-somebody"}, CatalogCode.ENV_NAME_RESERVED),
        ("env", {"HOME": "/"}, CatalogCode.ENV_NAME_RESERVED),
        # Paths that would lead to another host with the ticket.
        ("open_path", "//evil.example", CatalogCode.PATH_INVALID),
        ("open_path", "/\\evil.example", CatalogCode.PATH_INVALID),
        ("open_path", ".evil.example/", CatalogCode.PATH_INVALID),
        ("open_path", "@evil.example/", CatalogCode.PATH_INVALID),
        ("open_path", "javascript:alert(1)", CatalogCode.PATH_INVALID),
        ("open_path", "/a b", CatalogCode.PATH_INVALID),
        ("open_path", "/a\r\nSet-Cookie: x", CatalogCode.PATH_INVALID),
        ("ready_path", "/../../x", CatalogCode.PATH_INVALID),
        ("name", "J\u202erevo", CatalogCode.SIGN_NOT_ALLOWED),
        ("name", "two\nlines", CatalogCode.SIGN_NOT_ALLOWED),
        ("description", "\x1b[2J", CatalogCode.SIGN_NOT_ALLOWED),
        ("icon", "\"><script>alert(1)</script>", CatalogCode.NO_SUCH_ICON),
        ("icon", "../../logout", CatalogCode.NO_SUCH_ICON),
    ],
)  # fmt: skip
def test_invalid_value_is_refused_at_its_field(olga, field, value, code):
    with pytest.raises(InvalidInput) as refused:
        make(olga, **{field: value})
    assert code in codes(refused, field)
    assert not Template.objects.exists()


@pytest.mark.parametrize("team_owned", [True, False])
def test_team_templates_cannot_allow_service_workers(alice, olga, team, team_owned):
    for actor in (alice, olga):
        for given in ({"service_workers": True}, {"teams": ["robots"]}, {"teams": []}):
            if not team_owned and actor is alice:
                continue
            if team_owned:
                with pytest.raises(InvalidInput):
                    make(actor, team, **given)
    if not team_owned:
        assert make(olga, service_workers=True).service_workers


def test_owner_cannot_share_an_entry_with_all_teams(alice, team):
    made = make(alice, team)
    for given in ({"team": None}, {"team": "robots"}, {"slug": "shell"}):
        with pytest.raises(InvalidInput) as refused:
            entries.change(actor=alice, entry=made, values=given)
        assert refused.value.reason.code == CatalogCode.FIELD_FIXED


def test_owner_cannot_change_templates_of_the_site_or_another_team(alice, charlie, team, olga):
    site, other = make(olga), make(charlie, Team.objects.get(slug="robots"))
    for entry in (site, other):
        for act in (
            lambda entry=entry: entries.change(actor=alice, entry=entry, values={"argv": ["evil", "{port}"]}),
            lambda entry=entry: entries.delete(actor=alice, entry=entry),
        ):
            with pytest.raises(NotAllowed):
                act()


def test_likely_secrets_are_flagged(olga):
    made = make(
        olga,
        argv=["bash", "--port={port}", "--password=hunter22", "--token={token}"],
        env={"DB_PASSWORD": "hunter22", "GIT": "https://ann:pw@example.org/x", "JUPYTER_TOKEN": "{token}"},
    )
    found = {
        (warning.field, warning.reason.code, warning.reason.params.get("where"))
        for warning in rules.template_warnings(made)
    }
    assert found == {
        ("argv", CatalogCode.SECRET_LIKELY, "argv 3"),
        ("argv", CatalogCode.TOKEN_IN_ARGV, None),
        ("env", CatalogCode.SECRET_LIKELY, "DB_PASSWORD"),
        ("env", CatalogCode.SECRET_LIKELY, "GIT"),
    }
    quiet = make(olga, slug="quiet")
    assert rules.template_warnings(quiet) == []
    open_to_all = make(olga, slug="open", argv=["bash", "{port}"])
    assert [warning.reason.code for warning in rules.template_warnings(open_to_all)] == [
        CatalogCode.TOKEN_UNUSED
    ]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"accelerator_model": "H100"}, "accelerator_count"),
        ({"accelerator_milli": 500}, "accelerator_count"),
        (
            {"accelerator_count": 1, "accelerator_model": "A", "accelerator_models": ["B"]},
            "accelerator_models",
        ),
        ({"accelerator_count": 1, "accelerator_models": ["B", "B"]}, "accelerator_models"),
        ({"accelerator_count": 1, "accelerator_models": "B"}, "accelerator_models"),
        ({"accelerator_count": 1, "mig_profile": "1g.10gb", "accelerator_milli": 500}, "mig_profile"),
        ({"accelerator_count": 1, "accelerator_milli": 500, "nodes": 2}, "nodes"),
        ({"accelerator_count": 65}, "accelerator_count"),
        ({"cpu_milli": 0}, "cpu_milli"),
        ({"memory_mib": 2**40}, "memory_mib"),
        ({"expected_hours": 0.001}, "expected_hours"),
        ({"pool": "nonesuch"}, "pool"),
        ({"teams": ["nonesuch"]}, "teams"),
        ({"successor": "nonesuch"}, "successor"),
    ],
)
def test_inconsistent_flavor_is_refused(olga, given, field):
    with pytest.raises(InvalidInput) as refused:
        size(olga, **given)
    assert field in refused.value.extra["errors"]


def test_flavor_can_accept_several_models(olga):
    made = size(olga, accelerator_count=2, accelerator_models=["H100", "A100"], accelerator_memory_mib=40_000)
    accelerators = made.as_request()["accelerators"]
    assert (accelerators["models"], accelerators["model"], accelerators["memory_mib"]) == (
        ["H100", "A100"],
        "",
        40_000,
    )


# --- changes, versions, deletion --------------------------------------------------------------------


def test_changes_are_versioned_and_can_be_restored(olga, ada):
    made = make(olga)
    changed = entries.change(
        actor=ada, entry=made, values={"name": "Better", "argv": ["zsh", "{port}", "{token}"]}
    )
    rows = list(history.revisions(SubjectKind.TEMPLATE, made.pk))
    assert [(row.number, row.act, row.actor_label) for row in rows] == [
        (2, "changed", "ada"),
        (1, "created", "olga"),
    ]
    ((_, changes), (_, first)) = history.revisions_with_changes(rows)
    assert {change.field: (change.before, change.after) for change in changes}["name"] == ("Shell", "Better")
    assert first == []
    back = entries.restore(actor=olga, entry=changed, number=1)
    assert (back.name, back.argv) == (SHELL["name"], SHELL["argv"])
    newest = history.revisions(SubjectKind.TEMPLATE, made.pk).first()
    assert (newest.number, newest.act, newest.restored_from) == (3, "restored", 1)
    assert newest.data == rows[1].data
    with pytest.raises(NotFound):
        entries.restore(actor=olga, entry=back, number=99)


def test_existing_entry_becomes_the_first_version(olga, catalog):
    found = Template.objects.get(slug="jupyterlab")
    entries.change(actor=olga, entry=found, values={"description": "Ours"})
    rows = list(history.revisions(SubjectKind.TEMPLATE, found.pk))
    assert [(row.act, row.actor_label) for row in rows] == [("changed", "olga"), ("found", "Berth")]
    assert rows[1].data["description"] == "Notebooks, terminals and files in the browser."


def test_unchanged_values_create_no_version(olga):
    made = make(olga)
    tag = etags.etag_of(made)
    same = entries.change(actor=olga, entry=made, values={"name": made.name, "teams": None})
    assert etags.etag_of(same) == tag
    assert history.revisions(SubjectKind.TEMPLATE, made.pk).count() == 1
    assert Event.objects.filter(kind="template.changed").count() == 0


def test_outdated_version_is_refused(olga, ada):
    made = make(olga)
    seen = frozenset({etags.version_of(made)})
    entries.change(actor=ada, entry=made, values={"name": "Hers"}, expected=seen)
    with pytest.raises(PreconditionFailed) as refused:
        entries.change(actor=olga, entry=made, values={"name": "Mine"}, expected=seen)
    assert refused.value.reason.params["by"] == "ada"
    with pytest.raises(PreconditionFailed):
        entries.delete(actor=olga, entry=made, expected=seen)


def test_entry_in_use_is_not_deleted_and_its_users_are_named(olga, bob, team):
    template, flavor = make(olga), size(olga)
    workspace = WorkspaceFactory(
        owner=bob, team=team, template=template, flavor=flavor, name="bobs", state=State.STOPPED
    )
    for entry in (template, flavor):
        with pytest.raises(StateConflict) as refused:
            entries.delete(actor=olga, entry=entry)
        assert refused.value.reason.params["names"] == ["bobs"]
        assert "bobs" in refused.value.message
    workspace.state = State.TERMINATED
    workspace.save()
    for entry in (template, flavor):
        entries.delete(actor=olga, entry=entry)
        assert not type(entry).objects.filter(pk=entry.pk, deleted_at=None).exists()
    # Existing workspaces still refer to them.
    workspace.refresh_from_db()
    assert (workspace.template.slug, workspace.flavor.slug) == ("shell", "tiny")


def test_deleted_entry_of_the_starting_catalog_is_not_recreated(olga, catalog):
    for model, slug in ((Template, "marimo"), (Flavor, "cpu-large")):
        entries.delete(actor=olga, entry=model.objects.get(slug=slug))
    ensure_starting_catalog()
    assert not Template.objects.filter(slug="marimo", deleted_at=None).exists()
    assert not Flavor.objects.filter(slug="cpu-large", deleted_at=None).exists()


def test_deleted_accelerator_flavor_is_not_recreated(olga, catalog):
    pool = local_pool_with(node_info(gpus=1))
    flavor = Flavor.objects.get(accelerator_count=1)
    entries.delete(actor=olga, entry=flavor)
    ensure_accelerator_flavors(pool)
    assert not Flavor.objects.filter(slug=flavor.slug, deleted_at=None).exists()


def test_successor_is_proposed_and_never_forms_a_cycle(olga, alice, charlie, team):
    old, new = make(olga, slug="old"), make(olga, slug="new")
    old = entries.change(actor=olga, entry=old, values={"deprecated": True, "successor": "new"})
    assert selectors.deprecation_of(old).code == CatalogCode.ENTRY_HAS_SUCCESSOR
    with pytest.raises(InvalidInput) as refused:
        entries.change(actor=olga, entry=new, values={"successor": "old"})
    assert refused.value.reason.code == CatalogCode.SUCCESSOR_CIRCLE
    with pytest.raises(InvalidInput):
        entries.change(actor=olga, entry=new, values={"successor": "new"})
    # A hidden successor must not be revealed.
    make(charlie, Team.objects.get(slug="robots"))
    mine = make(alice, team)
    for entry, actor in ((mine, alice), (new, olga)):
        with pytest.raises(InvalidInput):
            entries.change(actor=actor, entry=entry, values={"successor": "robots_shell"})
    entries.delete(actor=olga, entry=new)
    old.refresh_from_db()
    assert old.successor is None
    assert selectors.deprecation_of(old).code == CatalogCode.ENTRY_DEPRECATED


# --- running --------------------------------------------------------------------------------------


def test_change_does_not_affect_a_start_in_progress(olga, bob, team):
    template = make(olga)
    started = WorkspaceFactory(
        owner=bob, team=team, template=template, state=State.PROVISIONING, placed_at=timezone.now(),
        generation=1, pool=local_pool_with(node_info()),
    )  # fmt: skip
    before = dispatch.spec_of(started)
    other = {"argv": ["zsh", "{port}", "{token_file}"], "env": {"A": "1"}}
    entries.change(actor=olga, entry=template, values=other)
    started.refresh_from_db()
    assert dispatch.spec_of(started).digest() == before.digest()
    started.placed_at = timezone.now() + timedelta(seconds=1)
    assert dispatch.spec_of(started).app.argv[0] == "zsh"


def test_startup_script_runs_first_and_its_failure_fails_the_start(olga, tmp_path):
    made = make(olga, argv=["/bin/echo", "main", "{port}"], startup=f"touch {tmp_path}/first")
    done = subprocess.run(made.command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "main {port}\n")
    assert (tmp_path / "first").exists()
    broken = make(olga, slug="broken", argv=["/bin/echo", "main", "{port}"], startup="exit 7")
    done = subprocess.run(broken.command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    # The shell does not interpret quotes in arguments.
    odd = make(olga, slug="odd", argv=["/bin/echo", "$(id); '\"", "{port}"], startup=":")
    done = subprocess.run(odd.command, capture_output=True, text=True, check=False)
    assert done.stdout == "$(id); '\" {port}\n"


def test_query_count_is_constant_for_1000_entries(olga, bob, team, django_assert_max_num_queries):
    Template.objects.bulk_create(TemplateFactory.build(slug=f"t{n}") for n in range(1000))
    Flavor.objects.bulk_create(FlavorFactory.build(slug=f"f{n}") for n in range(1000))
    with django_assert_max_num_queries(3):
        assert len(selectors.templates_of(team)) == 1000
    with django_assert_max_num_queries(3):
        assert len(selectors.search(selectors.flavors_for(bob), "f99")) == 11
