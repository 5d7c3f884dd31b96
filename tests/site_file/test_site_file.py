"""The site file: export, plan, apply, invalid files, and restoring a wiped site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from portal.catalog.environments import builds, curated
from portal.catalog.environments.models import Environment, EnvironmentVersion, VersionState
from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput, NotAllowed
from portal.common.events.models import Event
from portal.fleet.inventory.models import PlacementPolicy, Pool, RebalancingPolicy
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
from tests.suite.choice import examples

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


# --- software environments ------------------------------------------------------------------------


def versions(slug: str) -> list[EnvironmentVersion]:
    return list(EnvironmentVersion.objects.filter(environment__slug=slug).order_by("number"))


def test_environments_are_created_and_built(ada):
    applying.apply(actor=ada, text=FILE)
    tools, own = (Environment.objects.get(slug=slug) for slug in ("tools", "vision-tools"))
    assert (tools.name, tools.successor.slug, tools.deprecated) == ("Tools", "base", True)
    assert (own.team.slug, own.enabled, own.notebook) == ("vision", False, False)
    # The build is queued, and no node builds here.
    assert [builds.waits_for_node(version) for version in versions("tools")] == [True]
    assert [each.state for each in versions("vision-tools")] == [VersionState.NEW]
    assert Template.objects.get(slug="shell").environment == tools


@pytest.mark.parametrize("state", ["building", "failed", "ready"])
def test_build_state_is_not_compared(ada, state):
    applying.apply(actor=ada, text=FILE)
    EnvironmentVersion.objects.filter(environment__slug="tools").update(state=state, digest="d" * 32)
    if state == "ready":
        Environment.objects.filter(slug="tools").update(current=versions("tools")[0])
    assert applying.compare(actor=ada, text=FILE, prune=True) == []
    assert applying.apply(actor=ada, text=FILE) == []
    assert len(versions("tools")) == 1


def test_changed_source_is_a_new_version_with_a_line_diff(ada):
    applying.apply(actor=ada, text=FILE)
    more = FILE.replace("pandas  # frames", "polars")
    (step,) = applying.compare(actor=ada, text=more)
    assert step.change_texts == ["source: - pandas  # frames", "source: + polars"]
    assert len(versions("tools")) == 1
    applying.apply(actor=ada, text=more)
    assert [version.source for version in versions("tools")][1:] == ["numpy>=2\npolars\n"]
    assert applying.apply(actor=ada, text=more) == []


def test_environment_without_build_is_built_on_change_and_kept(ada):
    applying.apply(actor=ada, text=FILE)
    built = FILE.replace("enabled: false, build: false", "enabled: true, build: true")
    (step,) = applying.apply(actor=ada, text=built)
    assert step.change_texts == ["enabled: false → true", "build: false → true"]
    (version,) = versions("vision-tools")
    assert version.failure["code"] == "no_building_node"
    assert applying.compare(actor=ada, text=built.replace("build: true", "build: false")) == []


def test_restored_older_version_is_compared_as_current(ada):
    applying.apply(actor=ada, text=FILE)
    more = FILE.replace("pandas  # frames", "polars")
    applying.apply(actor=ada, text=more)
    for number, version in enumerate(versions("tools")):
        EnvironmentVersion.objects.filter(pk=version.pk).update(state="ready", digest=str(number) * 32)
    Environment.objects.filter(slug="tools").update(current=versions("tools")[0])
    assert applying.compare(actor=ada, text=FILE) == []
    assert [step.name for step in applying.compare(actor=ada, text=more)] == ["tools"]


def test_environment_name_is_compared_as_stored(ada):
    name = "Vision\xa0 and\u3000more"
    text = f"berth: 1\nenvironments:\n  vision: {{name: '{name}', build: false, source: numpy}}\n"
    assert applying.apply(actor=ada, text=text) != []
    assert Environment.objects.get(slug="vision").name == "Vision and more"
    assert applying.apply(actor=ada, text=text) == []


def test_invalid_source_line_is_refused_with_the_line_of_the_file(ada):
    bad = FILE.replace("pandas  # frames", "--index-url https://elsewhere.example")
    for act in (applying.compare, applying.apply):
        with pytest.raises(InvalidInput) as refused:
            act(actor=ada, text=bad)
        (reason,) = refused.value.extra["errors"]["yaml"]
        assert reason.params["line"] == FILE.split("\n").index("    source: |") + 1
        assert "Line 2 sets a package index: --index-url https://elsewhere.example." in refused.value.sentence
    assert not Environment.objects.exists()


def test_pruning_keeps_environments_shipped_with_berth(ada):
    applying.apply(actor=ada, text=FILE)
    curated.ensure()
    deletions = applying.compare(actor=ada, text=FILE, prune=True)
    assert not [step for step in deletions if step.section == "environments"]
    applying.apply(actor=ada, text="berth: 1\ntemplates: {}\nenvironments: {}\n", prune=True)
    assert not Environment.objects.filter(curated=False).exists()
    assert Environment.objects.filter(curated=True).count() > 1
    assert "minimal" not in exporting.current()["environments"]
    text = exporting.as_yaml(exporting.current())
    assert applying.compare(actor=ada, text=text, prune=True) == []


def test_environment_stays_with_its_team_and_is_not_deleted_in_use(ada):
    applying.apply(actor=ada, text=FILE)
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=FILE.replace("-tools: {team: vision, ", "-tools: {team: null, "))
    assert "“team” cannot be changed later" in refused.value.sentence
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text="berth: 1\nenvironments: {}\n", prune=True)
    assert "in use by" in refused.value.sentence
    assert Environment.objects.count() == 3


# --- generated sites ------------------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
words = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Cf")), min_size=1, max_size=20).filter(
    lambda text: text.strip() == text
)
amounts = st.integers(0, 10**6)
quotas = st.dictionaries(
    st.sampled_from(["gpu:h100", "cpu_milli", "workspaces"]),
    st.fixed_dictionaries({"quota": amounts, "borrowing_limit": st.none() | amounts}),
)


SOURCES = [
    {"source_kind": "packages", "source": "numpy"},
    {"source_kind": "requirements", "source": "numpy>=2 # why\n\n  pandas\n"},
    {"source_kind": "lock", "source": "numpy==2.1 --hash=sha256:" + "a" * 64 + "\n"},
    {"source_kind": "lock", "source": "numpy==2.1\n"},
    {"source_kind": "pyproject", "source": '[project]\ndependencies = ["numpy"]\n'},
    {"source_kind": "folder", "source": "/opt/conda/envs/ml/"},
]


week = st.fixed_dictionaries(
    {
        "zone": st.sampled_from(["UTC", "Europe/Berlin"]),
        "days": st.lists(st.sampled_from(["sun", "mon", "wed"]), min_size=1, unique=True),
        "stop_at": st.sampled_from(["17:00", "23:59"]),
        "holidays": st.lists(st.sampled_from(["2026-12-25", "2027-01-01"]), unique=True),
        "work_from": st.sampled_from(["06:30", "08:00"]),
        "work_until": st.just("17:30"),
        "after_hours_minutes": st.none() | st.integers(0, 600),
    }
)
policy = st.tuples(
    st.fixed_dictionaries(
        {"idle_minutes": st.integers(0, 600)},
        optional={
            "idle_gpu_minutes": st.none() | st.integers(0, 600),
            "gpu_unused_minutes": st.integers(0, 600),
            "longest_hours": st.integers(0, 600),
            "stop_when_spent": st.none() | st.booleans(),
        },
    ),
    st.just({}) | week,
).map(lambda parts: {**parts[0], **parts[1]})


of_templates = st.fixed_dictionaries(
    {},
    optional={
        "icon": st.sampled_from(["", "code", "notebook"]),
        "install_hint": words,
        "min_cuda": st.sampled_from(["", "12.4", "13.0"]),
        "min_compute_capability": st.sampled_from(["", "8.0"]),
        "ready_path": st.sampled_from(["/", "/api?a=b"]),
        "open_path": st.just("/lab"),
        "upstream_auth": st.sampled_from(["none", "bearer"]),
        "activity": st.sampled_from(["", "jupyter"]),
        "egress": st.sampled_from(["", "none"]),
        "dotfiles_url": st.just("https://git.example.org/dots.git"),
        "start_timeout_s": st.integers(5, 3600),
        "stop_timeout_s": st.integers(0, 300),
        "work_lost": st.sampled_from(["always", "accelerated", "never"]),
        "default_lifetime_hours": st.none() | st.integers(0, 8784),
        "max_lifetime_hours": st.none() | st.integers(0, 8784),
        "position": st.integers(0, 1000),
        "deprecated": st.booleans(),
    },
)
of_git = st.fixed_dictionaries(
    {"git_url": st.just("https://git.example.org/team/code.git")},
    optional={"git_ref": st.sampled_from(["", "main"]), "git_secret": st.sampled_from(["", "DEPLOY_KEY"])},
)
listed = st.just({"egress": "list", "egress_allow": "packages.example.org\n10.1.0.0/16"})
of_the_sites_own = st.fixed_dictionaries(
    {},
    optional={
        "mounts": st.lists(st.sampled_from(["imagenet", "coco:rw", "scratch"]), unique=True),
        "service_workers": st.booleans(),
    },
)
accelerators = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"accelerator_count": st.integers(1, 8)},
        optional={
            "accelerator_memory_mib": st.integers(0, 200_000),
            "within": st.sampled_from(["node", "numa"]),
            "nodes": st.integers(1, 4),
        },
    ),
    st.fixed_dictionaries(
        {
            "accelerator_count": st.just(1),
            "accelerator_models": st.lists(st.sampled_from(["NVIDIA H100", "NVIDIA L4"]), unique=True),
            "accelerator_milli": st.integers(1, 1000),
        }
    ),
    st.just({"accelerator_count": 2, "accelerator_model": "NVIDIA H100"}),
    st.just({"accelerator_count": 1, "mig_profile": "1g.10gb"}),
)
of_flavors = st.fixed_dictionaries(
    {},
    optional={
        "disk_mib": st.integers(0, 10**6),
        "preemptible": st.booleans(),
        "work_lost": st.sampled_from(["", "always", "never"]),
        "expected_hours": st.integers(1, 24) | st.floats(0.02, 24),
        "default_lifetime_hours": st.none() | st.integers(0, 24),
        "max_lifetime_hours": st.none() | st.integers(48, 1000),
        "price_cents": st.none() | st.integers(0, 10**6),
        "position": st.integers(0, 1000),
        "deprecated": st.booleans(),
    },
)
of_pools = st.fixed_dictionaries(
    {"driver": st.just("local"), "name": words},
    optional={
        "config": st.dictionaries(st.sampled_from(["spares", "spare_environments"]), st.integers(0, 9)),
        "placement_policy": st.sampled_from(list(PlacementPolicy.values)),
        "rebalancing": st.sampled_from(list(RebalancingPolicy.values)),
        "enabled": st.booleans(),
        "retiring": st.booleans(),
        "check_every_hours": st.integers(0, 100),
    },
)


@st.composite
def sites(draw: Any) -> dict[str, Any]:
    cohorts = draw(st.lists(names, max_size=3, unique=True))
    teams = draw(st.lists(names, max_size=3, unique=True))
    flavors = draw(st.lists(names, max_size=3, unique=True))
    of = st.none() | st.sampled_from(teams) if teams else st.none()
    site: dict[str, Any] = {"berth": 1}
    site["pools"] = draw(st.dictionaries(names, of_pools, max_size=2))
    site["rates"] = draw(st.dictionaries(st.just("gpu:h100"), amounts))
    pools = st.none() | st.sampled_from(sorted(site["pools"])) if site["pools"] else st.none()
    site["cohorts"] = {
        slug: {
            "name": draw(words),
            # Only earlier ones, written in any order.
            "parent": draw(st.none() | st.sampled_from(cohorts[:at])) if at else None,
            "weight_milli": draw(st.integers(1, 5000)),
            "quotas": draw(quotas),
        }
        for at, slug in reversed(list(enumerate(cohorts)))
    }
    site["teams"] = {
        slug: {
            "name": draw(words),
            "cohort": draw(st.none() | st.sampled_from(cohorts)) if cohorts else None,
            "quotas": draw(quotas),
            "member_caps": draw(st.dictionaries(st.just("gpu:h100"), amounts)),
            "ledger": draw(st.none() | st.fixed_dictionaries({"quota": amounts, "period": st.just("month")})),
        }
        for slug in teams
    }
    environments = draw(st.lists(names, max_size=2, unique=True))
    site["environments"] = {
        slug: {
            "team": draw(of),
            "name": draw(words),
            "enabled": draw(st.booleans()),
            "notebook": draw(st.booleans()),
            "build": draw(st.booleans()),
            "python": draw(st.sampled_from(["3.11", "3.12"])),
            **draw(st.sampled_from(SOURCES)),
        }
        for slug in environments
    }
    site["site_limits"] = draw(st.dictionaries(st.just("gpu:h100"), amounts))
    site["flavors"] = {
        slug: {
            "name": draw(words),
            "description": draw(st.just("") | words),
            "cpu_milli": draw(st.integers(100, 10**6)),
            "memory_mib": draw(st.integers(128, 10**6)),
            "teams": draw(st.none() | st.lists(st.sampled_from(teams), unique=True)) if teams else None,
            "successor": draw(st.none() | st.sampled_from(flavors[:at])) if at else None,
            "enabled": draw(st.booleans()),
            "pool": draw(pools),
            **draw(accelerators),
            **draw(of_flavors),
        }
        for at, slug in reversed(list(enumerate(flavors)))
    }
    site["templates"] = {}
    for slug in draw(st.lists(names, max_size=2, unique=True)):
        team = draw(of)
        allowed = [name for name in environments if site["environments"][name]["team"] in (None, team)]
        site["templates"][f"{team}_{slug}" if team else slug] = {
            "team": team,
            "environment": draw(st.none() | st.sampled_from(allowed)) if allowed else None,
            "name": draw(words),
            "program": "bash",
            "argv": [
                "bash",
                "{port}",
                draw(st.text(st.characters(whitelist_categories=("L", "N")), max_size=9)),
            ],
            "env": draw(st.dictionaries(st.sampled_from(["A", "B_C"]), words)),
            "startup": draw(st.sampled_from(["", "echo one\necho two\n", "true  "])),
            **draw(of_templates),
            **draw(st.just({}) | listed),
            **draw(st.just({}) | of_git),
            **({} if team else draw(of_the_sites_own)),
        }
    targets = ["site", *(f"team:{slug}" for slug in teams), *(f"flavor:{slug}" for slug in flavors)]
    targets += [f"template:{slug}" for slug in site["templates"]]
    site["reclaim_policies"] = {
        target: draw(policy) for target in draw(st.lists(st.sampled_from(targets), max_size=3, unique=True))
    }
    site["rules"] = draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "team": of,
                    "resource": st.just("gpu:h100"),
                    "amount_at_most": st.integers(1, 5000),
                    "hours_at_most": st.integers(1, 100),
                    "enabled": st.booleans(),
                }
            ),
            max_size=2,
        )
    )
    return site


@pytest.mark.slow("each of 25 examples applies 3 sites")
@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(site=sites())
def test_wiped_site_is_restored_from_its_export(ada, site):
    with transaction.atomic():
        wipe()
        applying.apply(actor=ada, text=exporting.as_yaml(site))
        assert applying.apply(actor=ada, text=exporting.as_yaml(site)) == []
        before = exporting.current()
        text = exporting.as_yaml(before)
        wipe()
        applying.apply(actor=ada, text=text)
        assert exporting.current() == before
        assert applying.compare(actor=ada, text=text, prune=True) == []
        transaction.set_rollback(True)
