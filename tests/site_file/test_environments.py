"""Environments in a site file."""

from __future__ import annotations

import pytest

from portal.catalog.environments import builds, curated
from portal.catalog.environments.models import Environment, EnvironmentVersion, VersionState
from portal.catalog.models import Template
from portal.common.errors import InvalidInput
from portal.site_file import applying, exporting
from tests.site_file.test_site_file import FILE

pytestmark = pytest.mark.django_db


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
