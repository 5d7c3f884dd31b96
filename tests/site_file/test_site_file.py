"""The site as a file: export, plan, apply; wrong files; and that a wiped site comes back from its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from portal.accounts.models import Team
from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput, NotAllowed
from portal.events.models import Event
from portal.inventory.models import Pool
from portal.ledger.models import LedgerAccount
from portal.quota_requests.models import AutoApproveRule
from portal.quotas.models import Cohort, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.site_file import applying, exporting
from portal.site_file.planning import Act, plan
from portal.site_file.schema import schema
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "site.schema.json"
FILE = """\
berth: 1
pools:
  lab: {driver: local, name: The lab, config: {spares: 0}, check_every_h: 24}
cohorts:
  inner: {parent: outer}
  outer: {weight_milli: 2000, quotas: {"gpu:h100": {nominal: 8000}}}
teams:
  vision:
    name: Vision
    cohort: inner
    quotas: {"gpu:h100": {nominal: 4000, borrowing_limit: 1000}}
    member_caps: {workspaces: 3}
    ledger: {granted: 3600000, period: month}
site_limits: {"gpu:h100": 16000}
rates: {"gpu:h100": 2000}
flavors:
  small: {name: Small, cpu_milli: 1000, memory_mib: 2048, deprecated: true, successor: tall}
  tall: {name: Tall, cpu_milli: 2000, memory_mib: 4096, teams: [vision]}
templates:
  shell: {name: Shell, program: bash, argv: [bash, "{port}"], env: {A: b}}
  vision_own: {team: vision, name: Own, program: bash, argv: [bash, "{port}"], successor: shell}
rules:
  - {team: vision, resource: "gpu:h100", amount_at_most: 1000, hours_at_most: 8}
"""


def wipe() -> None:
    """An empty site, whatever stood there."""
    for model in (Template, Flavor):
        model.objects.update(successor=None)
    for model in (
        AutoApproveRule, Template, Flavor, MemberCap, Quota, TeamShare, LedgerAccount, SiteLimit,
        ResourceRate,
    ):  # fmt: skip
        model.objects.all().delete()
    Cohort.objects.update(parent=None)
    for model in (Cohort, Pool, Team):
        model.objects.all().delete()


def test_applying_makes_the_site_and_applying_again_does_nothing(ada):
    done = applying.apply(actor=ada, text=FILE)
    assert {step.act for step in done} == {Act.CREATE}
    assert Flavor.objects.get(slug="small").successor.slug == "tall"
    assert Template.objects.get(slug="vision_own").team.slug == "vision"
    assert Cohort.objects.get(slug="inner").parent.slug == "outer"
    assert Pool.objects.get(slug="lab").check_every_h == 24
    events = Event.objects.count()
    assert applying.compare(actor=ada, text=FILE) == []
    assert applying.apply(actor=ada, text=FILE) == []
    assert Event.objects.count() == events


def test_an_export_is_the_site(ada):
    applying.apply(actor=ada, text=FILE)
    text = exporting.as_yaml(exporting.export(actor=ada))
    assert applying.compare(actor=ada, text=text, prune=True) == []
    before = exporting.current()
    wipe()
    applying.apply(actor=ada, text=text)
    assert exporting.current() == before
    Draft202012Validator(schema()).validate(before)


def test_a_plan_says_in_words_what_differs_and_changes_nothing(ada):
    applying.apply(actor=ada, text=FILE)
    (step,) = applying.compare(actor=ada, text=FILE.replace("cpu_milli: 1000", "cpu_milli: 1500"))
    assert (step.section, step.name, step.words) == ("flavors", "small", ["cpu_milli: 1000 → 1500"])
    assert Flavor.objects.get(slug="small").cpu_milli == 1000


def test_what_a_file_does_not_name_stays_unless_it_prunes(ada):
    applying.apply(actor=ada, text=FILE)
    less = "berth: 1\nflavors: {}\nrules: []\n"
    assert applying.apply(actor=ada, text=less) == []
    gone = applying.apply(actor=ada, text=less, prune=True)
    assert {(step.section, step.name) for step in gone if step.section == "flavors"} == {
        ("flavors", "small"),
        ("flavors", "tall"),
    }
    assert not Flavor.objects.filter(deleted_at=None).exists()
    assert not AutoApproveRule.objects.exists()
    assert Template.objects.filter(deleted_at=None).count() == 2


def test_it_is_all_or_nothing_and_names_the_line(ada):
    bad = FILE.replace('argv: [bash, "{port}"], env', "argv: [bash], env")
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=bad)
    (reason,) = refused.value.extra["errors"]["yaml"]
    assert reason.code.value == "step_refused"
    assert (reason.params["line"], reason.params["name"]) == (20, "shell")
    assert not Team.objects.exists()
    assert not Pool.objects.exists()


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("berth: 1\nflavours: {}\n", 2, "flavours"),
        ("berth: 1\nflavors:\n  a: {cpu: 4}\n", 3, "cpu"),
        ("berth: 2\n", 1, "1 was expected"),
        ("berth: 1\nflavors:\n  a:\n    cpu_milli: many\n", 4, "integer"),
        ("berth: 1\nflavors:\n  A_b: {}\n", 2, "A_b"),
        ("berth: 1\nberth: 1\n", 2, "twice"),
        ("berth: 1\nteams: &a {x: {}}\ncohorts: *a\n", 2, "anchors"),
        ("berth: 1\nteams: {x: {name: 2026-01-01}}\n", 2, "quotes"),
        ("berth: 1\nteams: {1: {}}\n", 2, "quotes"),
        ("berth: [1\n", 2, "YAML"),
        ("!!python/object/apply:os.system [id]\n", 1, "object"),
        ("- 1\n", 1, "object"),
        ("", 1, "berth"),
    ],
)
def test_wrong_files_are_refused_with_their_line(ada, text, line, word):
    with pytest.raises(InvalidInput) as refused:
        applying.apply(actor=ada, text=text)
    reasons = refused.value.extra["errors"]["yaml"]
    assert reasons[0].params["line"] == line, refused.value.message
    assert word in refused.value.message


def test_only_administrators_apply_and_only_who_sees_people_exports(olga, alice, ada):
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


def test_secrets_are_never_exported_and_applying_keeps_them(ada):
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


def test_sign_in_providers_are_compared_and_left(ada, providers):
    site = exporting.current()
    assert site["sign_in_providers"]
    assert "secret" not in json.dumps(site["sign_in_providers"])
    (step,) = plan(site, {"berth": 1, "sign_in_providers": []})
    assert step.act is Act.BY_HAND


def test_the_published_schema_is_the_present_one():
    assert json.loads(SCHEMA.read_text()) == schema(), "manage.py site_schema > docs/site.schema.json"


def test_the_starting_catalog_is_a_site_file(ada):
    from portal.catalog.initial_catalog import FILE, TEMPLATES
    from provisioning.preloading import JUPYTER_MAIN

    done = applying.apply(actor=ada, text=FILE.read_text(encoding="utf-8"))
    assert {step.name for step in done} >= {"jupyterlab", "marimo", "vscode", "cpu-small"}
    # Sandboxes that are kept ready are known by it.
    assert JUPYTER_MAIN in next(each["argv"] for each in TEMPLATES if each["slug"] == "jupyterlab")


# --- generated sites ----------------------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
words = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Cf")), min_size=1, max_size=20).filter(
    lambda text: text.strip() == text
)
amounts = st.integers(0, 10**6)
quotas = st.dictionaries(
    st.sampled_from(["gpu:h100", "cpu_milli", "workspaces"]),
    st.fixed_dictionaries({"nominal": amounts, "borrowing_limit": st.none() | amounts}),
)


@st.composite
def sites(draw: Any) -> dict[str, Any]:
    cohorts = draw(st.lists(names, max_size=3, unique=True))
    teams = draw(st.lists(names, max_size=3, unique=True))
    flavors = draw(st.lists(names, max_size=3, unique=True))
    of = st.none() | st.sampled_from(teams) if teams else st.none()
    site: dict[str, Any] = {"berth": 1}
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
            "ledger": draw(
                st.none() | st.fixed_dictionaries({"granted": amounts, "period": st.just("month")})
            ),
        }
        for slug in teams
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
        }
        for at, slug in reversed(list(enumerate(flavors)))
    }
    site["templates"] = {}
    for slug in draw(st.lists(names, max_size=2, unique=True)):
        team = draw(of)
        site["templates"][f"{team}_{slug}" if team else slug] = {
            "team": team,
            "name": draw(words),
            "program": "bash",
            "argv": [
                "bash",
                "{port}",
                draw(st.text(st.characters(whitelist_categories=("L", "N")), max_size=9)),
            ],
            "env": draw(st.dictionaries(st.sampled_from(["A", "B_C"]), words)),
            "startup": draw(st.sampled_from(["", "echo one\necho two\n", "true  "])),
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


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(site=sites())
def test_a_wiped_site_comes_back_from_its_export(ada, site):
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
