"""Generated sites are restored from their exports."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.fleet.inventory.models import PlacementPolicy, RebalancingPolicy
from portal.site_file import applying, exporting
from tests.site_file.test_site_file import wipe
from tests.suite.choice import examples

pytestmark = pytest.mark.django_db


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
