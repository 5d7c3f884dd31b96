"""The starting catalog, and flavors created for discovered accelerators."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from portal.catalog import selectors, services
from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput
from provisioning import messages
from provisioning.types import ResourceRequest, Within
from tests.factories import FlavorFactory, local_pool_with, node_info, simulated_pool

pytestmark = pytest.mark.django_db


def slugs(pool=None) -> list[str]:
    return sorted(Flavor.objects.filter(pool=pool).values_list("slug", flat=True))


def test_starting_catalog_is_valid_and_has_the_documented_slugs(catalog):
    assert {"jupyterlab", "marimo", "terminal", "vscode", "rstudio"} <= set(
        Template.objects.values_list("slug", flat=True)
    )
    assert {"cpu-small", "cpu-large"} <= set(slugs())
    for row in (*Template.objects.all(), *Flavor.objects.all()):
        row.full_clean()
    for template in Template.objects.all():
        assert template.install_hint
        assert template.argv
        assert all(isinstance(argument, str) for argument in template.argv)
        # A secret in an argument would be visible in the process list.
        assert not any("{token}" in argument for argument in template.argv)


@pytest.mark.parametrize(
    ("on_template", "on_flavor", "cpu", "gpu"),
    [
        ("always", "", True, True),
        ("accelerated", "", False, True),
        ("never", "", False, False),
        ("never", "always", True, True),
        ("always", "accelerated", False, True),
        ("accelerated", "never", False, False),
    ],
)
def test_work_lost_of_the_flavor_overrides_the_template(on_template, on_flavor, cpu, gpu):
    template = Template(work_lost=on_template)
    assert template.loses_work_on(Flavor(work_lost=on_flavor)) is cpu
    assert template.loses_work_on(Flavor(work_lost=on_flavor, accelerator_count=1)) is gpu


def test_default_work_lost_of_notebooks_and_unknown_programs(catalog):
    assert set(Template.objects.values_list("work_lost", flat=True)) == {"accelerated"}
    assert Template(slug="batch").loses_work_on(Flavor())


def test_creating_the_starting_catalog_twice_keeps_changes(catalog):
    Flavor.objects.filter(slug="cpu-small").update(cpu_milli=700)
    services.ensure_starting_catalog()
    assert Flavor.objects.get(slug="cpu-small").cpu_milli == 700
    assert Template.objects.filter(slug="jupyterlab").count() == 1


def test_every_flavor_is_a_valid_resource_request(catalog, tmp_path):
    simulated_pool(str(tmp_path / "sim"))
    FlavorFactory(accelerator_count=1, accelerator_milli=250, nodes=2, disk_mib=5)
    for flavor in Flavor.objects.all():
        request = messages.load(flavor.as_request(), ResourceRequest)
        assert (request.cpu_milli, request.nodes) == (flavor.cpu_milli, flavor.nodes)
        assert request.accelerators.share_milli == flavor.accelerator_milli
        assert request.accelerators.within is Within.NODE


@pytest.mark.parametrize("within", list(Within))
def test_flavor_requests_the_topology_of_accelerators(within):
    flavor = FlavorFactory(accelerator_count=4, accelerator_model="H100", within=within.value)
    flavor.full_clean()
    assert messages.load(flavor.as_request(), ResourceRequest).accelerators.within is within


def test_mig_flavor_cannot_request_a_topology(db):
    flavor = FlavorFactory.build(accelerator_count=2, mig_profile="1g.10gb", within="numa")
    with pytest.raises(ValidationError, match="can only share the node"):
        flavor.full_clean()


@pytest.mark.parametrize(
    ("gpus", "counts"), [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 4]), (8, [1, 2, 4, 8])]
)
def test_flavors_follow_the_devices_of_one_node(catalog, gpus, counts):
    local_pool_with(node_info(gpus=gpus), node_info("other", gpus=min(gpus, 1)))
    assert [slug for slug in slugs() if slug.startswith("nvidia")] == [
        f"nvidia-h100-80gb-hbm3-x{count}" for count in counts
    ]


def test_flavors_get_proportional_cpu_and_memory(catalog):
    local_pool_with(node_info(gpus=4, cpu_milli=64_000, memory_mib=262_144))
    one = Flavor.objects.get(slug="nvidia-h100-80gb-hbm3-x1")
    four = Flavor.objects.get(slug="nvidia-h100-80gb-hbm3-x4")
    assert 4 * one.cpu_milli <= 64_000
    assert 4 * one.memory_mib <= 262_144
    assert (four.accelerator_count, four.accelerator_model) == (4, "NVIDIA H100 80GB HBM3")
    assert four.cpu_milli <= 64_000


def test_flavors_of_a_simulated_pool_are_bound_to_it(catalog, tmp_path):
    pool = simulated_pool(str(tmp_path / "sim"))
    assert slugs(pool) == ["sim-cpu", "sim-h100-x1", "sim-h100-x2", "sim-h100-x4"]
    assert slugs() == ["cpu-large", "cpu-small"]
    assert all(flavor.simulated for flavor in Flavor.objects.filter(pool=pool))


def test_long_or_non_ascii_model_names_get_a_slug(catalog):
    local_pool_with(node_info(gpus=1, model="Ünïcode™ accelerator " + "x" * 50))
    local_pool_with(node_info("other", gpus=1, model="™™™"), slug="second")
    for flavor in Flavor.objects.exclude(accelerator_count=0):
        flavor.clean_fields()
    assert Flavor.objects.exclude(accelerator_count=0).count() == 2


def test_changed_flavor_is_kept_at_the_next_inventory(catalog):
    pool = local_pool_with(node_info(gpus=1))
    Flavor.objects.filter(accelerator_count=1).update(enabled=False, name="Ours")
    services.ensure_accelerator_flavors(pool)
    flavor = Flavor.objects.get(accelerator_count=1)
    assert (flavor.enabled, flavor.name) == (False, "Ours")


@pytest.mark.parametrize("kind", ["template", "flavor"])
def test_unknown_slug_is_reported_with_the_existing_slugs(catalog, bob, kind):
    find = getattr(selectors, f"{kind}_by_slug")
    with pytest.raises(InvalidInput) as refused:
        find(bob, "nope")
    known = "jupyterlab" if kind == "template" else "cpu-small"
    assert known in refused.value.next_action
    assert kind in refused.value.extra["errors"]


def test_disabled_entries_are_not_offered(catalog, bob, team):
    Template.objects.filter(slug="marimo").update(enabled=False)
    Flavor.objects.filter(slug="cpu-large").update(enabled=False)
    assert "marimo" not in {item.slug for item in selectors.templates_of(team)}
    assert "cpu-large" not in {item.slug for item in selectors.flavors_of(team)}
    with pytest.raises(InvalidInput):
        selectors.template_by_slug(bob, "marimo")


def test_flavors_are_read_in_two_queries(catalog, tmp_path, django_assert_num_queries):
    simulated_pool(str(tmp_path / "sim"))
    with django_assert_num_queries(2):
        assert any(flavor.simulated for flavor in selectors.all_flavors())
