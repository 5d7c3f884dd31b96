"""Without contact there are no estimates: previews and queue name the silent pool or node."""

from __future__ import annotations

import pytest

from portal.catalog.models import Flavor, Template
from portal.cli.looking import _position
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node
from portal.fleet.inventory.node_commands import config_of
from portal.scheduling import cycle
from portal.scheduling.admission import assess
from portal.scheduling.engine.codes import WaitBasis
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces.models import QueueEntry
from provisioning.registry import driver_for
from provisioning.types import Failure
from tests import sites
from tests.scheduling.test_flavor_preference import flavors, preview, two_models  # noqa: F401
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
SILENCE = Failure("backend_unavailable", "It does not answer.", retryable=True, blame="operator")


def ask(team, actor, slug: str = "sim-h100-x4") -> Verdict:
    template = Template.objects.get(slug="jupyterlab")
    return assess(template=template, flavor=Flavor.objects.get(slug=slug), team=team, actor=actor)


@pytest.fixture
def waiting(make, alice, bob, pool):
    """Two workspaces use the whole pool; a third waits for the first end."""
    for name in ("a", "b"):
        make(alice, "sim-h100-x4", name=name)
    return make(bob, "sim-h100-x4", name="third")


def test_silent_pool_has_no_estimate_in_any_interface(waiting, pool, team, bob, as_user, with_token):
    assert waiting.queue_entry.eta_at is not None
    assert "until about" in ask(team, bob).message
    inventory.apply_inventory_failure(pool=pool, failure=SILENCE)
    pool.refresh_from_db()
    verdict = ask(team, bob)
    assert (verdict.outcome, verdict.eta_at) == (Outcome.QUEUED, None)
    assert verdict.basis is not None and verdict.basis.code is WaitBasis.NO_CONTACT
    assert verdict.basis.params == {"name": pool.name, "since": pool.inventory_at.isoformat()}
    assert f"no contact with {pool.name} since" in verdict.eta_basis
    assert "until about" not in verdict.message
    assert {holder["until"] for holder in verdict.blocker["holders"]} == {None}
    cycle.run()
    entry = QueueEntry.objects.get(pk=waiting.pk)
    assert (entry.eta_at, entry.eta_basis) == (None, verdict.basis.as_json())
    (row,) = with_token(bob, "quotas:read").get("/api/v1/queue").json()["results"]
    assert (row["eta"], row["eta_basis"]) == (None, verdict.eta_basis)
    workspace = with_token(bob, "workspaces:read").get(f"/api/v1/workspaces/{waiting.pk}").json()
    assert verdict.eta_basis in _position(workspace["queue"])
    for page in ("/queue/", f"/workspaces/{waiting.pk}/", "/workspaces/new/?flavor=sim-h100-x4"):
        assert f"no contact with {pool.name} since" in as_user(bob).get(page).content.decode(), page


def test_an_idle_silent_pool_names_the_silence_and_no_limit(pool, team, bob, catalog):
    inventory.apply_inventory_failure(pool=pool, failure=SILENCE)
    verdict = ask(team, bob)
    assert (verdict.eta_at, verdict.basis.code) == (None, WaitBasis.NO_CONTACT)


def test_estimate_returns_when_the_pool_reports(waiting, pool, team, bob):
    inventory.apply_inventory_failure(pool=pool, failure=SILENCE)
    assert ask(team, bob).eta_at is None
    inventory.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
    assert ask(team, bob).eta_at is not None


def test_silent_nodes_do_not_shorten_the_estimate(make, alice, bob, pool, team, clock):
    """The work on the silent node would end first, but its capacity could not be used."""
    first = make(alice, "sim-h100-x4", name="first")
    clock.shift(3600)
    make(alice, "sim-h100-x4", name="second")
    early = ask(team, bob)
    Node.objects.filter(allocations__workspace=first).update(online=False)
    rows_changed()
    late = ask(team, bob)
    assert (late.eta_at - early.eta_at).total_seconds() >= 3500
    Node.objects.update(online=False)
    rows_changed()
    verdict = ask(team, bob)
    assert (verdict.eta_at, verdict.basis.params) == (None, {"name": pool.nodes.first().name, "since": ""})


def test_estimate_skips_a_listed_flavor_on_silent_nodes(two_models, make, alice, bob, team):  # noqa: F811
    make(alice, "big", team=team)
    for name in ("b1", "b2"):
        make(alice, "small", team=team, name=name)
    two_models.nodes.filter(name="a").update(online=False)
    rows_changed()
    verdict = preview(team, bob, "big", "small")
    assert verdict.eta_at is not None
    assert verdict.flavor == flavors("small")[0]
