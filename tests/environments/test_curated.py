"""Environments that come with the portal: creation, low-priority builds, failures."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from portal.catalog.environments import curated, services, upkeep
from portal.catalog.environments.models import Environment, EnvironmentVersion, VersionState
from portal.catalog.environments.sources import package_names, validate_source
from portal.catalog.models import Template
from portal.catalog.selectors import missing_program, node_programs
from portal.common.actors import SYSTEM
from portal.common.errors import InvalidInput
from portal.common.events.models import Notification
from portal.common.reasons.wording import next_action_of
from portal.workspaces.software import ON_THE_NODE, default_of
from tests.environments.helpers import built, commands, failed, only
from tests.factories import local_pool_with, node_info

pytestmark = pytest.mark.django_db


@pytest.fixture
def whole(settings):
    settings.BERTH_SKIP_DATA_SCIENCE = False


def data_science() -> Environment:
    return Environment.objects.get(slug=curated.DATA_SCIENCE)


def jupyter() -> Template:
    return Template.objects.select_related("environment__current").get(slug="jupyterlab")


def test_curated_environments_are_created_once_and_changes_are_kept(whole, db):
    assert curated.ensure() == ["minimal", "data-science", "vscode", "pytorch", "jax"]
    services.change(actor=SYSTEM, environment=data_science(), name="Ours", enabled=False)
    assert curated.ensure() == []
    assert (data_science().name, data_science().enabled, data_science().curated) == ("Ours", False, True)


def test_only_data_science_is_built_automatically(whole, local_pool, sent):
    curated.ensure()
    states = dict(EnvironmentVersion.objects.values_list("environment__slug", "state"))
    assert states == {"data-science": "building", "vscode": "new", "pytorch": "new", "jax": "new"}
    upkeep.sweep()
    command = only(sent)
    assert {"numpy", "jupyterlab", "marimo"} < set(command.source.split())
    assert command.source.count("jupyterlab\n") == 1


def test_data_science_can_be_skipped(settings, db):
    settings.BERTH_SKIP_DATA_SCIENCE = True
    assert curated.ensure() == ["minimal", "vscode", "pytorch", "jax"]
    assert not EnvironmentVersion.objects.filter(state=VersionState.BUILDING).exists()


def test_first_bootstrap_makes_it_the_jupyterlab_default_and_later_ones_do_not(whole, db, sent, monkeypatch):
    monkeypatch.setenv("BERTH_ADMIN_PASSWORD", "a-long-enough-password")
    call_command("bootstrap")
    assert jupyter().environment == data_science()
    Template.objects.update(environment=None)
    call_command("bootstrap")
    assert jupyter().environment is None


def test_minimal_is_the_default_until_the_environment_is_ready(whole, local_pool, sent, team):
    curated.ensure()
    Template.objects.filter(slug="jupyterlab").update(environment=data_science())
    assert default_of(jupyter(), team) == ON_THE_NODE
    upkeep.sweep()
    built(only(sent))
    assert default_of(jupyter(), team).environment == data_science()


def test_failed_build_without_network_notifies_operators_only(whole, local_pool, sent, olga, bob, clock):
    curated.ensure()
    upkeep.sweep()
    for wait_s in (61, 121):
        failed(only(sent), "index_unreachable")
        clock.shift(wait_s)
        upkeep.sweep()
    assert len(commands(sent)) == 1
    told = Notification.objects.get()
    assert told.user == olga
    assert told.repeats >= 1
    assert "cannot reach the package index" in told.body


def test_vs_code_is_available_after_its_environment_is_built(whole, db, settings):
    settings.BERTH_BUILD_WHEN_ASKED = False
    local_pool_with(node_info(programs=("jupyter-lab", "bash")))
    call_command("bootstrap")
    template = Template.objects.select_related("environment__current").get(slug="vscode")
    assert template.environment is not None and template.environment.slug == curated.VSCODE
    reason = missing_program(template, node_programs().installed)
    assert reason is not None and "VS Code" in next_action_of(reason)
    settings.BERTH_BUILD_WHEN_ASKED = True
    assert missing_program(template, node_programs().installed) is None
    version = template.environment.versions.get()
    assert "npm:code-server" in version.source.split()
    version.state, version.digest, version.programs = VersionState.READY, "a" * 32, ["code-server"]
    version.save()
    Environment.objects.filter(pk=template.environment.pk).update(current=version)
    template = Template.objects.select_related("environment__current").get(slug="vscode")
    assert missing_program(template, node_programs().installed) is None
    assert default_of(template, None).version == version


@pytest.mark.parametrize("line", ["npm:code-server", "npm:code-server==4.1.0"])
def test_code_server_can_be_listed_as_a_package(line, db):
    assert validate_source("packages", f"numpy\n{line}\n")[1] == f"numpy\n{line}\n"
    assert package_names("packages", f"numpy\n{line}\n") == ["numpy", "code-server"]


@pytest.mark.parametrize("line", ["npm:left-pad", "npm:code-server; x", "npm:code-server==1 --registry=x"])
def test_other_npm_packages_are_refused(line, db):
    with pytest.raises(InvalidInput):
        validate_source("packages", f"numpy\n{line}\n")


@pytest.mark.parametrize(
    ("drivers", "torch", "jax"),
    [
        ((), "torch", "jax[cuda12]"),
        (("12.4",), "torch<2.11", "jax[cuda12]"),
        (("13.0",), "torch", "jax[cuda13]"),
        (("13.0", "12.8"), "torch<2.11", "jax[cuda12]"),
        (("11.8",), "torch<2.11", "jax[cuda12]"),
        (("14.1",), "torch", "jax[cuda13]"),
    ],
)
def test_cuda_version_fits_the_oldest_driver(olga, sent, drivers, torch, jax):
    nodes = [node_info(f"gpu-{number}", gpus=1, cuda_version=each) for number, each in enumerate(drivers)]
    local_pool_with(*nodes, node_info("without"))
    curated.ensure()
    for slug, line in (("pytorch", torch), ("jax", jax)):
        row = Environment.objects.get(slug=slug)
        before = row.versions.get().source_digest
        services.rebuild(actor=olga, environment=row)
        version = row.versions.get()
        definition = next(each for each in curated.DEFINITIONS if each.slug == slug)
        assert version.source.split() == [line, *definition.packages[1:]]
        assert (version.source_digest == before) == (line == definition.packages[0])
    asked = {command.source.split()[0] for command in commands(sent)}
    assert asked <= {torch, jax}
    assert asked


def test_explicit_cuda_line_is_kept(olga, sent):
    local_pool_with(node_info(gpus=1, cuda_version="13.0"))
    curated.ensure()
    row = Environment.objects.get(slug="jax")
    services.change_source(actor=olga, environment=row, source_kind="packages", source="jax[cuda12]\nflax")
    assert row.versions.first().source == "jax[cuda12]\nflax\n"
