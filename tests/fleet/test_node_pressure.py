"""Pressure and headroom of a node, on its page and over REST."""

from __future__ import annotations

import pytest

from portal.fleet.inventory.models import Node
from tests.factories import local_pool_with, node_info

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"cpu": 96.4, "memory": 0.0, "io": 1.5}, "CPU 96 %, memory 0 %, disks 2 %"),
        ({"cpu": None, "memory": 12.0, "io": None}, "memory 12 %"),
        ({"cpu": None, "memory": None, "io": None}, None),
        ({"cpu": "high"}, None),
        ("high", None),
        (None, None),
    ],
)
def test_node_shows_pressure(told, shown, olga, as_user, with_token):
    local_pool_with(node_info(facts={"pressure": told}))
    node = Node.objects.get()
    page = as_user(olga).get(f"/gpus/nodes/{node.pk}/").content.decode()
    assert ("Pressure, last minute" in page) == (shown is not None)
    assert shown is None or shown in page
    assert with_token(olga).get(f"/api/v1/nodes/{node.pk}").json()["facts"] == {"pressure": told}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"watched_s": 300, "cpu_idle": 0.3, "memory_left": 41.0}, "CPU 0.3 %, memory 41 %"),
        ({"watched_s": 300, "cpu_idle": None, "memory_left": 2.5}, "memory 2.5 %"),
        ({"watched_s": 0}, None),
        ("none", None),
        (None, None),
    ],
)
def test_node_shows_headroom(told, shown, olga, as_user):
    local_pool_with(node_info(facts={"headroom": told}))
    page = as_user(olga).get(f"/gpus/nodes/{Node.objects.get().pk}/").content.decode()
    assert ("Free, last 5 minutes" in page) == (shown is not None)
    assert shown is None or shown in page
