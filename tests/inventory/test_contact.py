"""Nodes of a silent pool are no targets of new work, although they were online before."""

from __future__ import annotations

import pytest

from portal.catalog.environments.models import EnvironmentBuild
from portal.fleet.inventory import services
from portal.fleet.inventory.models import Device, Node, Pool
from portal.gpu_checks import joint, peers, resets
from portal.gpu_checks.codes import CheckCode
from portal.workspaces.homes import moves
from provisioning.types import Failure
from tests.environments.helpers import environment
from tests.factories import local_pool_with
from tests.gpu_checks.helpers import linked_node

pytestmark = pytest.mark.django_db
SILENCE = Failure("backend_unavailable", "It does not answer.", retryable=True, blame="operator")


@pytest.fixture
def silent(catalog) -> Pool:
    pool = local_pool_with(linked_node("a", 2), linked_node("b", 2))
    services.apply_inventory_failure(pool=pool, failure=SILENCE)
    assert pool.nodes.filter(online=True).count() == 2
    pool.refresh_from_db()
    return pool


def test_homes_do_not_move_to_nodes_of_a_silent_pool(silent):
    assert moves.target_nodes(silent) == []
    Pool.objects.update(state="online")
    assert [node.name for node in moves.target_nodes(silent)] == ["a", "b"]


def test_environments_are_not_built_on_nodes_of_a_silent_pool(silent, team, alice):
    environment()
    assert not EnvironmentBuild.objects.exists()
    Pool.objects.update(state="online")
    environment(name="Second")
    assert EnvironmentBuild.objects.exists()


def test_gpus_of_a_silent_pool_are_not_checked_or_reset(silent):
    node = Node.objects.get(name="a")
    device = node.devices.first()
    assert joint.refusal(node).code is CheckCode.NODE_NOT_ANSWERING
    assert resets.refusal(device).code is CheckCode.NODE_NOT_ANSWERING
    assert not peers._free(device).exists()
    Pool.objects.update(state="online")
    device = Device.objects.get(pk=device.pk)
    assert joint.refusal(device.node) is None
    assert peers._free(device).count() == 3
