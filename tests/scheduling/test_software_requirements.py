"""Driver and device requirements of a template: refused with the reason, never placed where it cannot run."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from portal.catalog.models import Template
from portal.catalog.selectors import all_flavors
from portal.fleet.inventory.models import AllocatedDevice, Pool
from portal.scheduling import software_requirements
from portal.scheduling.admission import assess
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.placement.types import NodeSoftware, SoftwareRequirements
from portal.scheduling.verdicts import Outcome
from portal.workspaces.lifecycle import State
from provisioning.types import AcceleratorRequest, DeviceInfo
from tests.factories import FlavorFactory, local_pool_with, node_info

pytestmark = pytest.mark.django_db
T4, H100 = "Tesla T4", "NVIDIA H100 80GB HBM3"
CAPABILITY = {T4: "7.5", H100: "9.0"}


def node(name: str, model: str, cuda: str):
    devices = tuple(
        DeviceInfo(
            uuid=f"GPU-{name}-{index}", index=index, model=model, memory_mib=15_360,
            compute_capability=CAPABILITY[model],
        )
        for index in range(2)
    )  # fmt: skip
    return node_info(name, devices=devices, cuda_version=cuda, driver_version="1", cpu_milli=64_000)


@pytest.fixture
def sites(catalog):
    """An old node with T4 and CUDA 12.2, and a new one with H100 and CUDA 13.0."""
    pool = local_pool_with(node("old", T4, "12.2"), node("new", H100, "13.0"))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    for slug, model in (("t4", T4), ("h100", H100), ("any", "")):
        FlavorFactory(slug=slug, accelerator_count=1, accelerator_model=model)
    return pool


def needs(**fields: str) -> Template:
    Template.objects.filter(slug="jupyterlab").update(**fields)
    return Template.objects.get(slug="jupyterlab")


def verdict(team, actor, slug: str):
    return assess(
        template=Template.objects.get(slug="jupyterlab"),
        flavor=all_flavors().get(slug=slug),
        team=team,
        actor=actor,
    )


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"min_cuda": "12.4"}, "CUDA 12.4 or newer"),
        ({"min_compute_capability": "8.0"}, "compute capability 8.0"),
    ],
)
def test_unsuitable_device_is_refused_with_the_reason(sites, team, alice, fields, word):
    needs(**fields)
    refused = verdict(team, alice, "t4")
    assert refused.outcome is Outcome.IMPOSSIBLE
    assert refused.reason.code is AdmissionCode.NO_NODE_HAS_SOFTWARE
    assert word in refused.message and "JupyterLab needs" in refused.message
    assert "update the NVIDIA driver" in refused.next_action
    assert verdict(team, alice, "h100").outcome is Outcome.FITS_NOW
    assert verdict(team, alice, "cpu-small").outcome is Outcome.FITS_NOW


@pytest.mark.parametrize("fields", [{"min_cuda": "12.4"}, {"min_compute_capability": "8.0"}])
def test_request_for_any_model_gets_a_suitable_one(sites, make, alice, fields):
    needs(**fields)
    made = [make(alice, "any") for _ in range(3)]
    assert [each.state for each in made] == [State.PROVISIONING, State.PROVISIONING, State.PENDING]
    assert set(AllocatedDevice.objects.values_list("device__model", flat=True)) == {H100}


def test_compute_capability_is_checked_per_device_on_a_mixed_node(catalog, make, alice):
    both = (*node("a", T4, "13.0").devices, *node("b", H100, "13.0").devices)
    pool = local_pool_with(node_info("both", devices=both, cuda_version="13.0", cpu_milli=64_000))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0)
    FlavorFactory(slug="any", accelerator_count=1)
    needs(min_compute_capability="9.0")
    made = [make(alice, "any") for _ in range(3)]
    assert [each.state for each in made] == [State.PROVISIONING, State.PROVISIONING, State.PENDING]
    assert set(AllocatedDevice.objects.values_list("device__model", flat=True)) == {H100}


def test_node_without_driver_version_satisfies_no_requirement():
    nothing = software_requirements.node_software("", frozenset(), frozenset())
    assert nothing == NodeSoftware()
    unknown = software_requirements.node_software("unknown", frozenset(), frozenset({("X", "")}))
    assert unknown == NodeSoftware()
    assert not nothing.meets(SoftwareRequirements(min_cuda=(11, 0)))
    assert not nothing.meets(SoftwareRequirements(min_compute_capability=(7, 5)))


def test_versions_are_compared_as_numbers():
    has = software_requirements.node_software("12.10", frozenset(), frozenset({(H100, "9.0"), (T4, "10.3")}))
    assert has.meets(SoftwareRequirements(min_cuda=(12, 10)))
    assert has.meets(SoftwareRequirements(min_cuda=(12, 9)))
    assert has.meets(SoftwareRequirements(min_cuda=(11, 80)))
    assert not has.meets(SoftwareRequirements(min_cuda=(12, 11)))
    assert has.meets(SoftwareRequirements(min_compute_capability=(9, 5)))
    assert not has.meets(SoftwareRequirements(min_compute_capability=(9, 5), models=(H100,)))
    assert not has.meets(SoftwareRequirements(program="jupyter-lab"))


def test_requirements_do_not_apply_without_accelerators():
    template = Template(min_cuda="12.4", min_compute_capability="9.0")
    assert not software_requirements.requirements_of(template, AcceleratorRequest())


@pytest.mark.parametrize(
    "wrong", [{"min_cuda": "twelve"}, {"min_cuda": "9.0"}, {"min_compute_capability": "9.5"}]
)
def test_invalid_requirements_are_refused(catalog, wrong):
    template = needs()
    for name, value in wrong.items():
        setattr(template, name, value)
    with pytest.raises(ValidationError):
        template.full_clean()


def test_usage_in_a_disabled_pool_takes_no_capacity_of_others(sites, make, alice, team, pool):
    assert [make(alice, "h100").state for _ in range(2)] == ["provisioning", "provisioning"]
    other = local_pool_with(node("more", H100, "13.0"), slug="other")
    Pool.objects.filter(pk=other.pk).update(hand_out_max_age_hours=0)
    Pool.objects.filter(slug="this-machine").update(enabled=False)
    assert [make(alice, "h100").state for _ in range(3)] == ["provisioning", "provisioning", "pending"]
