"""Rack and block of nodes: permissions, validation, placement and the site file."""

from __future__ import annotations

import pytest

from portal.common.errors import InvalidInput
from portal.common.events.models import Event
from portal.fleet.inventory import held_environments, locations, services
from portal.fleet.inventory.models import Node, Pool
from portal.scheduling import snapshot_cache
from portal.site_file import applying, exporting
from tests.factories import UserFactory, inventory_of, local_pool_with, node_info

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(catalog) -> Node:
    return local_pool_with(node_info("gpu-1"), node_info("gpu-2")).nodes.get(name="gpu-1")


def racks() -> dict[str, tuple[str, str]]:
    """The locations that the scheduler would use next."""
    with snapshot_cache.cycle_cache.use() as snapshot:
        return {
            node.name: (node.rack, node.block)
            for pool in snapshot.pools.values()
            for node in pool.nodes
            if not pool.pool.simulated
        }


def test_location_set_by_the_form_is_used_by_map_and_placement(node, olga, as_user):
    before = racks()
    page = as_user(olga).post(f"/gpus/nodes/{node.pk}/location/", {"rack": "r07", "block": "b1"}, follow=True)
    assert b"<dt>Rack</dt><dd>r07</dd>" in page.content
    assert (before["gpu-1"], racks()["gpu-1"]) == (("", ""), ("r07", "b1"))
    event = Event.objects.get(kind="node.located")
    assert (event.actor, event.message) == (olga, "set the location of gpu-1 to b1/r07")
    assert event.data["before"] == {"rack": "", "block": ""}
    shown = as_user(olga).get("/gpus/?by=rack").content.decode()
    assert shown.index("b1/r07") < shown.index("gpu-1") < shown.index("Unknown rack") < shown.index("gpu-2")


def test_invalid_rack_is_a_field_error(node, olga, as_user):
    refused = as_user(olga).post(f"/gpus/nodes/{node.pk}/location/", {"rack": "r 7", "block": "b1"})
    assert refused.status_code == 400 and b"Start and end with a letter or digit" in refused.content
    assert racks()["gpu-1"] == ("", "")


def test_second_editor_gets_a_conflict(node, olga, as_user):
    url = f"/gpus/nodes/{node.pk}/location/"
    version = as_user(olga).get(url).context["form"]["version"].value()
    assert as_user(olga).post(url, {"rack": "r1", "block": "", "version": version}).status_code == 302
    late = as_user(olga).post(url, {"rack": "r2", "block": "", "version": version})
    assert late.status_code == 400 and racks()["gpu-1"] == ("r1", "")


def test_inventory_keeps_concurrent_operator_changes(node, olga, monkeypatch):
    as_rows = held_environments.as_rows

    def set_meanwhile(environments):
        locations.set_location(actor=olga, node_id=node.pk, labels={"rack": "r1"})
        services.set_cordon(actor=olga, node_id=node.pk, cordoned=True)
        return as_rows(environments)

    monkeypatch.setattr(held_environments, "as_rows", set_meanwhile)
    services.apply_inventory(pool=node.pool, inventory=inventory_of(node_info("gpu-1", cpu_milli=3000)))
    node.refresh_from_db()
    assert (node.rack, node.cordoned, node.cpu_milli) == ("r1", True, 3000)


def test_site_file_exports_and_sets_locations(node, olga):
    root = UserFactory(is_superuser=True)
    key = f"{node.pool.slug}/gpu-1"
    assert exporting.export(actor=root)["nodes"] == {}
    locations.set_location(actor=olga, node_id=node.pk, labels={"rack": "r1"})
    assert exporting.export(actor=root)["nodes"] == {key: {"rack": "r1", "block": ""}}
    text = f"berth: 1\nnodes:\n  {key}: {{block: b2}}\n  {node.pool.slug}/gpu-2: {{rack: r2}}\n"
    steps = applying.apply(actor=root, text=text)
    assert [(step.name, step.act, step.change_texts) for step in steps] == [
        (key, "change", ["block:  → b2"]),
        (f"{node.pool.slug}/gpu-2", "change", ["rack:  → r2"]),
    ]
    assert racks() == {"gpu-1": ("r1", "b2"), "gpu-2": ("r2", "")}
    assert applying.compare(actor=root, text=text, prune=True) == []
    with pytest.raises(InvalidInput, match=r"Line 3, nodes .*gpu-9.* not found in the pool"):
        applying.apply(actor=root, text=f"berth: 1\nnodes:\n  {node.pool.slug}/gpu-9: {{rack: r1}}\n")


def test_removed_node_has_no_location(node, olga):
    services.retire_node(actor=olga, pool=Pool.objects.get(pk=node.pool_id), name="gpu-1", reason="Gone")
    assert "gpu-1" not in str(exporting.current()["nodes"])
