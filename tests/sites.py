"""Sites shared by the tests of a module: `WORLD = one_machine` in a module creates the site once.

The fixtures of `tests/conftest.py` and `tests/fixtures.py` (`alice`, `team`, `catalog`, `pool`, ...) then
return the rows of the site instead of creating their own. The changes of a test are rolled back
(`tests/worlds.py`), and each test starts at the time when the site was ready. Not for modules with tests
marked `django_db(transaction=True)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portal.fleet.inventory.models import Pool
    from portal.people.accounts.models import Team, User
    from portal.workspaces.models import Workspace
    from tests.broker import Broker, Message


@dataclass(slots=True)
class Site:
    """The rows of a module's world, by fixture. A fixture creates the rows that are None here."""

    alice: User | None = None
    bob: User | None = None
    team: Team | None = None
    catalog: bool = False
    pool: Pool | None = None
    local_pool: Pool | None = None
    eight: Pool | None = None
    workspace: Workspace | None = None
    messages: list[Message] = field(default_factory=list)
    """Messages that were sent, but not delivered, when the site was ready."""


def people(_sent: Broker) -> Site:
    """alice, bob and their team vision."""
    from tests.factories import UserFactory, vision

    alice, bob = UserFactory(username="alice"), UserFactory(username="bob")
    return Site(alice=alice, bob=bob, team=vision(owner=alice, member=bob))


def with_catalog(sent: Broker) -> Site:
    """The people and the starting catalog."""
    from portal.catalog.services import ensure_starting_catalog

    site = people(sent)
    ensure_starting_catalog()
    site.catalog = True
    return site


def one_machine(sent: Broker) -> Site:
    """The people, the starting catalog and `local_pool`."""
    from tests.factories import local_pool_with, node_info

    site = with_catalog(sent)
    site.local_pool = local_pool_with(node_info())
    return site


def simulated_machines(sent: Broker) -> Site:
    """The people, the starting catalog and `pool`; each test starts the pool's backend in its own folder."""
    import tempfile

    from tests.factories import simulated_pool

    site = with_catalog(sent)
    with tempfile.TemporaryDirectory(prefix="berth-sim-") as folder:
        site.pool = simulated_pool(f"{folder}/sim")
    return site


def eight_gpus(sent: Broker) -> Site:
    """The people, the starting catalog and `eight`."""
    from tests.fixtures import machine_of_eight

    site = with_catalog(sent)
    site.eight = machine_of_eight()
    return site


def one_workspace(sent: Broker) -> Site:
    """One machine, and a workspace of alice that is starting on it."""
    from portal.catalog.selectors import flavor_by_slug, template_by_slug
    from tests.factories import create_workspace

    site = one_machine(sent)
    assert site.alice is not None
    site.workspace = create_workspace(
        actor=site.alice,
        team=site.team,
        template=template_by_slug(site.alice, "jupyterlab"),
        flavor=flavor_by_slug(site.alice, "cpu-small"),
    )
    site.messages = list(sent)
    return site


def running_workspace(sent: Broker) -> Site:
    """One machine, and a running workspace of alice on it."""
    from tests.workspaces.helpers import run_until_ready

    site = one_workspace(sent)
    assert site.workspace is not None
    run_until_ready(sent, site.workspace)
    site.messages = list(sent)
    return site
