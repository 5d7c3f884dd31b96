"""The site file: export, plan, apply, invalid files, and restoring a wiped site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput, NotAllowed
from portal.common.events.models import Event
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.requests.models import AutoApproveRule
from portal.reclaim.models import ReclaimPolicy
from portal.site_file import applying, exporting
from portal.site_file.planning import Action, plan
from portal.site_file.schema import schema
from provisioning.preloading import JUPYTER_MAIN
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "site.schema.json"
FILE = """\
berth: 1
pools:
  lab: {driver: local, name: The lab, config: {spares: 0}, check_every_hours: 24}
cohorts:
  inner: {parent: outer}
  outer: {weight_milli: 2000, quotas: {"gpu:h100": {quota: 8000}}}
teams:
  vision:
    name: Vision
    cohort: inner
    quotas: {"gpu:h100": {quota: 4000, borrowing_limit: 1000}}
    member_caps: {workspaces: 3}
    ledger: {quota: 3600000, period: month}
environments:
  tools:
    name: Tools
    source_kind: requirements
    source: |
      numpy>=2
      pandas  # frames
    python: "3.12"
    deprecated: true
    successor: base
  base: {source: numpy, build: false}
  vision-tools: {team: vision, source: polars, notebook: false, enabled: false, build: false}
site_limits: {"gpu:h100": 16000}
rates: {"gpu:h100": 2000}
flavors:
  small: {name: Small, cpu_milli: 1000, memory_mib: 2048, deprecated: true, successor: tall}
  tall: {name: Tall, cpu_milli: 2000, memory_mib: 4096, teams: [vision]}
templates:
  shell: {name: Shell, program: bash, argv: [bash, "{port}"], env: {A: b}, environment: tools}
  vision_own:
    {team: vision, environment: vision-tools, name: Own, program: bash, argv: [bash, "{port}"],
     successor: shell}
reclaim_policies:
  site: {idle_gpu_minutes: 90, notice_minutes: 20}
  team:vision:
    idle_minutes: 60
    zone: Europe/Berlin
    days: [fri, mon]
    stop_at: "19:00"
    holidays: ["2026-12-26", "2026-12-25"]
  flavor:small: {longest_hours: 100, stop_when_spent: true}
rules:
  - {team: vision, resource: "gpu:h100", amount_at_most: 1000, hours_at_most: 8}
"""


def wipe() -> None:
    """Empty the site."""
    for model in (Template, Flavor):
        model.objects.update(successor=None)
    for model in (
        AutoApproveRule, ReclaimPolicy, Template, Flavor, MemberCap, Quota, TeamShare, LedgerAccount,
        SiteLimit, ResourceRate,
    ):  # fmt: skip
        model.objects.all().delete()
    Cohort.objects.update(parent=None)
    for model in (Cohort, Pool, Environment, Team):
        model.objects.all().delete()


def test_apply_creates_the_site_and_is_idempotent(ada):
    done = applying.apply(actor=ada, text=FILE)
    assert {step.act for step in done} == {Action.CREATE}
    assert Flavor.objects.get(slug="small").successor.slug == "tall"
    assert Template.objects.get(slug="vision_own").team.slug == "vision"
    assert Cohort.objects.get(slug="inner").parent.slug == "outer"
    assert Pool.objects.get(slug="lab").check_every_hours == 24
    events = Event.objects.count()
    assert applying.compare(actor=ada, text=FILE) == []
    assert applying.apply(actor=ada, text=FILE) == []
    assert Event.objects.count() == events


def test_export_equals_the_site(ada):
    applying.apply(actor=ada, text=FILE)
    text = exporting.as_yaml(exporting.export(actor=ada))
    assert applying.compare(actor=ada, text=text, prune=True) == []
    before = exporting.current()
    wipe()
    applying.apply(actor=ada, text=text)
    assert exporting.current() == before
    Draft202012Validator(schema()).validate(before)


def test_plan_lists_differences_without_changes(ada):
    applying.apply(actor=ada, text=FILE)
    (step,) = applying.compare(actor=ada, text=FILE.replace("cpu_milli: 1000", "cpu_milli: 1500"))
    assert (step.section, step.name, step.change_texts) == ("flavors", "small", ["cpu_milli: 1000 → 1500"])
    assert Flavor.objects.get(slug="small").cpu_milli == 1000


def test_unlisted_entries_are_kept_unless_pruned(ada):
    applying.apply(actor=ada, text=FILE)
    less = "berth: 1\nflavors: {}\nrules: []\n"
    assert applying.apply(actor=ada, text=less) == []
    deletions = applying.apply(actor=ada, text=less, prune=True)
    assert {(step.section, step.name) for step in deletions if step.section == "flavors"} == {
        ("flavors", "small"),
        ("flavors", "tall"),
    }
    assert not Flavor.objects.filter(deleted_at=None).exists()
    assert not AutoApproveRule.objects.exists()
    assert Template.objects.filter(deleted_at=None).count() == 2


def test_apply_is_atomic_and_errors_name_the_line(ada):
    shell = next(line for line in FILE.split("\n") if line.startswith("  shell:"))
    bad = FILE.replace('argv: [bash, "{port}"], env', "argv: [bash], env")
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=bad)
    (reason,) = refused.value.extra["errors"]["yaml"]
    assert reason.code.value == "step_refused"
    assert (reason.params["line"], reason.params["name"]) == (FILE.split("\n").index(shell) + 1, "shell")
    assert not Team.objects.exists()
    assert not Pool.objects.exists()


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("berth: 1\nflavours: {}\n", 2, "flavours"),
        ("berth: 1\nflavors:\n  a: {cpu: 4}\n", 3, "cpu"),
        ("berth: 1\nflavors:\n  a:\n    cpu_mili: 4\n", 4, "did you mean cpu_milli"),
        ("berth: 2\n", 1, "1 was expected"),
        ("berth: 1\nflavors:\n  a:\n    cpu_milli: many\n", 4, "integer"),
        ("berth: 1\nflavors:\n  A_b: {}\n", 2, "A_b"),
        ("berth: 1\nberth: 1\n", 2, "duplicate"),
        ("berth: 1\nteams: &a {x: {}}\ncohorts: *a\n", 2, "anchors"),
        ("berth: 1\nteams: {x: {name: 2026-01-01}}\n", 2, "quotes"),
        ("berth: 1\nteams: {1: {}}\n", 2, "quotes"),
        ("berth: [1\n", 2, "YAML"),
        ("!!python/object/apply:os.system [id]\n", 1, "object"),
        ("- 1\n", 1, "object"),
        ("", 1, "berth"),
    ],
)
def test_invalid_files_are_refused_with_the_line(ada, text, line, word):
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text)
    reasons = refused.value.extra["errors"]["yaml"]
    assert reasons[0].params["line"] == line, refused.value.message
    assert word in refused.value.message


def test_only_administrators_apply_and_only_readers_of_users_export(olga, alice, ada):
    auditor = UserFactory(username="una", is_auditor=True)
    for actor in (olga, alice, auditor):
        with pytest.raises(NotAllowed):
            applying.apply(actor=actor, text=FILE)
        with pytest.raises(NotAllowed):
            applying.compare(actor=actor, text=FILE)
    for actor in (olga, alice):
        with pytest.raises(NotAllowed):
            exporting.export(actor=actor)
    assert exporting.export(actor=auditor)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("reclaim_policies:\n  site: {stop_at: 19:00}", 2, "write “19:00” in quotes"),
        ("reclaim_policies:\n  site: {holidays: [2026-12-25]}", 2, "in quotes"),
        ("reclaim_policies:\n  site:\n    idle_minutes: -1", 3, "minimum"),
        ("reclaim_policies:\n  site:\n    idle: 1", 3, "no field “idle”"),
        ("reclaim_policies:\n  moon:a: {idle_minutes: 1}", 1, "moon:a"),
        ("reclaim_policies:\n  flavor:gone: {idle_minutes: 1}", 2, "flavor:gone"),
        ("reclaim_policies:\n  site:\n    idle_minutes: 1\n    stop_at: '19:00'", 2, "days"),
        ("reclaim_policies:\n  site:\n    zone: Moon\n    idle_minutes: 1", 3, "time zone"),
        ("reclaim_policies:\n  site: {}", 2, "sets no value"),
    ],
)
def test_invalid_policy_is_refused_with_the_line(ada, text, line, word):
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text if text.startswith("berth") else f"{text}\nberth: 1")
    problems = " ".join(refused.value.field_errors["yaml"])
    assert f"ine {line}" in problems
    assert word in problems
    assert not ReclaimPolicy.objects.exists()


@pytest.mark.parametrize("word", ["off", '"off"', "Off", "no"])
def test_off_as_a_switch_needs_no_quotes(ada, local_pool, word):
    text = f"berth: 1\npools:\n  {local_pool.slug}:\n    rebalancing: {word}\n"
    (step,) = applying.apply(actor=ada, text=text)
    assert step.change_texts == ["rebalancing: site → off"]
    assert Pool.objects.get(pk=local_pool.pk).rebalancing == "off"
    assert applying.apply(actor=ada, text=exporting.as_yaml(exporting.export(actor=ada))) == []
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text.replace(f": {word}", ": on"))
    assert "ine 4" in " ".join(refused.value.field_errors["yaml"])


def test_policies_are_changed_by_field_and_pruned(ada):
    applying.apply(actor=ada, text=FILE)
    row = ReclaimPolicy.objects.get(scope="team")
    assert (row.days, row.holidays) == (["mon", "fri"], ["2026-12-25", "2026-12-26"])
    one = "berth: 1\nreclaim_policies:\n  team:vision: {idle_minutes: 30}\n"
    (step,) = applying.apply(actor=ada, text=one)
    assert (step.act, step.change_texts) == (Action.CHANGE, ["idle_minutes: 60 → 30"])
    assert ReclaimPolicy.objects.get(scope="team").zone == "Europe/Berlin"
    deletions = applying.apply(actor=ada, text=one, prune=True)
    assert {(step.act, step.name) for step in deletions} == {
        (Action.DELETE, "site"),
        (Action.DELETE, "flavor:small"),
    }
    assert ReclaimPolicy.objects.get().target == "team:vision"


def test_pruning_a_flavor_deletes_its_policy(ada):
    applying.apply(actor=ada, text=FILE)
    text = exporting.as_yaml({**exporting.current(), "flavors": {}, "reclaim_policies": {}})
    applying.apply(actor=ada, text=text, prune=True)
    assert exporting.current()["reclaim_policies"] == {}
    assert applying.compare(actor=ada, text=text, prune=True) == []


def test_secrets_are_never_exported_and_kept_by_apply(ada):
    applying.apply(
        actor=ada, text=FILE.replace("env: {A: b}", "env: {A: b, DB_PASSWORD: hunter22, T_TOKEN: '{token}'}")
    )
    Pool.objects.update(config={"spares": 0, "api_token": "hunter22"})
    text = exporting.as_yaml(exporting.current())
    assert "hunter22" not in text
    assert "T_TOKEN" in text
    assert applying.compare(actor=ada, text=text, prune=True) == []
    applying.apply(actor=ada, text=text.replace("A: b", "A: c"))
    assert Template.objects.get(slug="shell").env == {
        "A": "c",
        "DB_PASSWORD": "hunter22",
        "T_TOKEN": "{token}",
    }


def test_sign_in_providers_are_compared_but_not_changed(ada, providers):
    site = exporting.current()
    assert site["sign_in_providers"]
    assert "secret" not in json.dumps(site["sign_in_providers"])
    (step,) = plan(site, {"berth": 1, "sign_in_providers": []})
    assert step.act is Action.MANUAL


def test_published_schema_is_current():
    assert json.loads(SCHEMA.read_text()) == schema(), "manage.py site_schema > docs/site.schema.json"


def test_initial_catalog_is_a_site_file(ada):
    from portal.catalog.initial_catalog import FILE, TEMPLATES

    done = applying.apply(actor=ada, text=FILE.read_text(encoding="utf-8"))
    assert {step.name for step in done} >= {"jupyterlab", "marimo", "terminal", "vscode", "cpu-small"}
    # Spares depend on it; a terminal uses one, too.
    jupyterlab, terminal = (
        next(each for each in TEMPLATES if each["slug"] == slug) for slug in ("jupyterlab", "terminal")
    )
    assert JUPYTER_MAIN in jupyterlab["argv"]
    assert {key for key in jupyterlab if jupyterlab[key] != terminal[key]} == {
        "slug", "name", "description", "icon", "open_path", "position",
    }  # fmt: skip
    assert terminal["activity"] == "jupyter"
