"""Pools: creation, changes, retirement and deletion."""

from __future__ import annotations

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common import etags
from portal.common.errors import InvalidInput, NotAllowed, NotFound, PreconditionFailed, StateConflict
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.fleet.inventory import node_commands, polling, pools, selectors, services
from portal.fleet.inventory.models import Pool
from portal.fleet.machines.readiness import missing_requirements
from portal.scheduling import admission
from portal.scheduling.verdicts import Outcome
from portal.workspaces.models import Workspace
from provisioning import messages
from tests.factories import inventory_of, local_pool_with, node_info, simulated_pool

pytestmark = pytest.mark.django_db


def test_pool_is_created_changed_and_restored(olga, ada):
    made = services.create_pool(actor=olga, slug="lab", name="Lab", driver="local")
    seen = frozenset({etags.version_of(made)})
    changed = pools.change(actor=ada, pool=made, fields={"name": "The lab"}, expected=seen)
    assert changed.name == "The lab"
    with pytest.raises(PreconditionFailed) as refused:
        pools.change(actor=olga, pool=made, fields={"name": "Mine"}, expected=seen)
    assert refused.value.reason.params["by"] == "ada"
    assert pools.restore(actor=olga, pool=made, number=1).name == "Lab"
    acts = history.revisions(SubjectKind.POOL, made.pk).values_list("act", flat=True)
    assert list(acts) == ["restored", "changed", "created"]


def test_slug_is_unique(olga):
    services.create_pool(actor=olga, slug="lab", name="Lab", driver="local")
    with pytest.raises(StateConflict) as refused:
        services.create_pool(actor=olga, slug="lab", name="Other", driver="local")
    assert refused.value.code == "slug_taken"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"slug": "other"}, "slug"),
        ({"driver": "simulated"}, "driver"),
        ({"config": {"port_min": "many"}}, "config"),
        ({"config": {"sandbx": "gvisor"}}, "config"),
        ({"config": {"port_min": {"a": 1}}}, "config"),
        ({"placement_policy": "any"}, "placement_policy"),
        ({"rebalancing": "sometimes"}, "rebalancing"),
        ({"rebalancing": ""}, "rebalancing"),
        ({"name": ""}, "name"),
    ],
)
def test_invalid_values_are_refused(olga, fields, field):
    made = services.create_pool(actor=olga, slug="lab", name="Lab", driver="local")
    with pytest.raises(InvalidInput) as refused:
        pools.change(actor=olga, pool=made, fields=fields)
    assert field in refused.value.extra["errors"]


def test_only_operators_manage_pools(alice, local_pool):
    for act in (
        lambda: services.create_pool(actor=alice, slug="x", name="X", driver="local"),
        lambda: pools.change(actor=alice, pool=local_pool, fields={"name": "Mine"}),
        lambda: pools.restore(actor=alice, pool=local_pool, number=1),
        lambda: pools.delete(actor=alice, pool=local_pool),
    ):
        with pytest.raises(NotAllowed):
            act()


def test_retiring_pool_takes_no_new_work_and_is_deletable_when_empty(olga, alice, team, make, catalog):
    pool = local_pool_with(node_info())
    running = make(alice)
    pool.refresh_from_db()
    with pytest.raises(StateConflict) as refused:
        pools.delete(actor=olga, pool=pool)
    assert refused.value.code == "not_retired"
    pools.change(actor=olga, pool=pool, fields={"retiring": True})
    small, jupyter = Flavor.objects.get(slug="cpu-small"), Template.objects.get(slug="jupyterlab")
    verdict = admission.assess(template=jupyter, flavor=small, team=team, actor=alice)
    assert verdict.outcome is Outcome.IMPOSSIBLE
    with pytest.raises(StateConflict) as refused:
        pools.delete(actor=olga, pool=pool)
    assert refused.value.code == "in_use"
    running.allocations.update(released_at=timezone.now())
    pools.delete(actor=olga, pool=pool)
    with pytest.raises(NotFound):
        selectors.pool_by_slug(pool.slug)
    # The row is kept for history, and the slug can be reused.
    assert Workspace.objects.get(pk=running.pk).pool == pool
    again = services.create_pool(actor=olga, slug=pool.slug, name="Again", driver="local")
    assert again.pk != pool.pk
    assert selectors.pool_by_slug(pool.slug) == again


def test_deleting_a_pool_deletes_its_flavors(olga, tmp_path, catalog):
    pool = simulated_pool(str(tmp_path / "sim"))
    assert pool.flavors.filter(deleted_at=None).exists()
    pools.change(actor=olga, pool=pool, fields={"retiring": True})
    pools.delete(actor=olga, pool=pool)
    assert not Flavor.objects.filter(pool=pool, deleted_at=None).exists()


def test_missing_requirements_of_a_pool(olga, catalog):
    empty = services.create_pool(actor=olga, slug="lab", name="Lab", driver="local")
    assert {"no_worker_answers", "no_node_yet"} <= {
        requirement.code.value for requirement in missing_requirements(empty)
    }
    there = local_pool_with(node_info())
    there = Pool.objects.get(pk=there.pk)
    assert missing_requirements(there) == []
    there.nodes.update(online=False)
    assert [requirement.code.value for requirement in missing_requirements(there)] == ["nodes_all_offline"]
    there.nodes.update(online=True, accelerator_state="driver_mismatch")
    assert [requirement.code.value for requirement in missing_requirements(there)] == [
        "accelerator_driver_missing"
    ]
    pools.change(actor=olga, pool=there, fields={"retiring": True})
    there.refresh_from_db()
    assert missing_requirements(there)[0].code.value == "pool_retiring"


def test_operator_creates_and_retires_a_pool_on_pages(as_user, olga):
    browser = as_user(olga)
    bad = browser.post("/pools/new/", {"slug": "lab", "name": "Lab", "driver": "local", "config": "[1"})
    assert bad.status_code == 400
    fields = {"slug": "lab", "name": "Lab", "driver": "local", "config": '{"spares": 0}'}
    assert browser.post("/pools/new/", fields)["Location"] == "/pools/lab/"
    page = browser.get("/pools/lab/edit/").content.decode()
    assert "The pool has no node." in page and "Moving running work" in page
    kept = {"name": "Lab", "placement_policy": "spread", "config": '{"spares": 0}'}
    assert browser.post("/pools/lab/edit/", {**kept, "rebalancing": "off"}).status_code == 302
    assert browser.post("/pools/lab/edit/", kept).status_code == 302
    assert Pool.objects.get(slug="lab").rebalancing == "off", "a form without it has changed it"
    browser.post("/pools/lab/retire/", {"retiring": "1"})
    assert Pool.objects.get(slug="lab").retiring
    assert browser.post("/pools/lab/delete/")["Location"] == "/pools/"
    assert not Pool.objects.filter(slug="lab", deleted_at=None).exists()


def test_unknown_driver_setting_is_refused(olga):
    with pytest.raises(InvalidInput) as refused:
        services.create_pool(actor=olga, slug="lab", name="Lab", driver="local", config={"sandbx": "gvisor"})
    assert "has no setting “sandbx”" in refused.value.sentence
    assert "port_max, port_min, sandbox, " in refused.value.sentence
    assert not Pool.objects.exists()
    made = services.create_pool(
        actor=olga, slug="lab", name="Lab", driver="local", config={"sandbox": "bwrap"}
    )
    # Existing unknown settings do not block other changes.
    Pool.objects.update(config={"of_old": 1})
    pools.change(actor=olga, pool=made, fields={"name": "The lab"})
    pools.change(actor=olga, pool=made, fields={"config": {"of_old": 2, "spares": 0}})
    with pytest.raises(InvalidInput):
        pools.change(actor=olga, pool=made, fields={"config": {"of_old": 2, "sparse": 0}})


def test_machine_counts_in_one_pool_only(olga, settings, tmp_path):
    settings.BERTH_NODE_NAME = "node-1"
    first = local_pool_with(node_info("node-1", gpus=1))
    second = services.create_pool(actor=olga, slug="lab", name="Lab", driver="local")
    named = services.create_pool(
        actor=olga, slug="named", name="Named", driver="local", config={"node": "node-1"}
    )
    assert node_commands.nodes_to_ask(second) == node_commands.nodes_to_ask(named) == []
    assert [requirement.code.value for requirement in missing_requirements(second)][:2] == [
        "no_worker_answers",
        "no_node_yet",
    ]
    told = missing_requirements(named)[0]
    assert (told.code.value, told.params) == ("node_elsewhere", {"node": "node-1", "pool": first.name})
    assert node_commands.nodes_to_ask(first) == ["node-1"]
    assert missing_requirements(first) == []
    # A report for that pool is ignored.
    polling.apply(second.slug, messages.dump(inventory_of(node_info("node-1", gpus=1))), None)
    assert not second.nodes.exists()
    # Simulated and deleted pools do not count.
    assert node_commands.nodes_to_ask(simulated_pool(str(tmp_path))) == [""]
    pools.change(actor=olga, pool=first, fields={"retiring": True})
    pools.delete(actor=olga, pool=first)
    assert node_commands.nodes_to_ask(second) == ["node-1"]
    # If two already have it, both report it.
    for pool in (second, named):
        services.apply_inventory(pool=pool, inventory=inventory_of(node_info("node-1")))
    assert [missing_requirements(pool)[0].code.value for pool in (second, named)] == ["node_elsewhere"] * 2
    assert node_commands.nodes_to_ask(second) == node_commands.nodes_to_ask(named) == ["node-1"]
