"""Rows for tests that no service can create; others are created by services."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import factory
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.common.scopes import Scope
from portal.fleet.inventory import services as inventory
from portal.fleet.inventory.models import Node, Pool
from portal.fleet.inventory.node_commands import config_of
from portal.fleet.machines.models import Machine
from portal.people.accounts.models import ApiToken, Membership, Role, Team, User
from portal.people.accounts.tokens import create_token
from portal.quota.limits import resources
from portal.workspaces import services as workspaces
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus
from portal.workspaces.order import WorkspaceOrder
from provisioning import messages
from provisioning.registry import driver_for
from provisioning.types import (
    Capability,
    DeviceInfo,
    Inventory,
    Isolation,
    LimitEnforcement,
    NodeInfo,
    ResourceRequest,
)
from provisioning.version import VERSION

PASSWORD = "a-long-enough-password"
PROGRAMS = ("jupyter-lab", "marimo", "code-server", "bash")


class UserFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda n: f"user-{n}")
    email = factory.LazyAttribute(lambda user: f"{user.username}@example.org")
    password = factory.django.Password(PASSWORD)


class TeamFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Team

    slug = factory.Sequence(lambda n: f"team-{n}")
    name = factory.LazyAttribute(lambda team: team.slug.capitalize())


class MembershipFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Membership

    team = factory.SubFactory(TeamFactory)
    user = factory.SubFactory(UserFactory)
    role = Role.MEMBER


def outsider() -> User:
    """charlie, with his own team robots."""
    user: User = UserFactory(username="charlie")
    MembershipFactory(team=TeamFactory(slug="robots"), user=user, role=Role.OWNER)
    return user


def vision(*, owner: User, member: User) -> Team:
    """The team vision."""
    team: Team = TeamFactory(slug="vision", name="Vision")
    MembershipFactory(team=team, user=owner, role=Role.OWNER)
    MembershipFactory(team=team, user=member, role=Role.MEMBER)
    return team


class TemplateFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Template

    slug = factory.Sequence(lambda n: f"template-{n}")
    name = factory.LazyAttribute(lambda template: template.slug.capitalize())
    program = "bash"
    argv = ["bash"]


class FlavorFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Flavor

    slug = factory.Sequence(lambda n: f"flavor-{n}")
    name = factory.LazyAttribute(lambda flavor: flavor.slug.capitalize())
    cpu_milli = 1000
    memory_mib = 1024


class MachineFactory(factory.django.DjangoModelFactory):
    """A machine that has joined a pool; it has no node."""

    class Meta:
        model = Machine

    name = factory.Sequence(lambda n: f"gpu-{n}")
    gateway_host = "10.0.0.7"
    gateway_port = 8646
    machine_id = factory.Sequence(lambda n: f"{n:064x}")
    version = VERSION
    certificate_expires_at = factory.LazyFunction(lambda: timezone.now() + timedelta(days=90))
    joined_at = factory.LazyFunction(timezone.now)


class QueueEntryFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = QueueEntry


class WorkspaceStatusFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = WorkspaceStatus


class WorkspaceFactory(factory.django.DjangoModelFactory):
    """Rows only, in any state: nothing is dispatched or allocated."""

    class Meta:
        model = Workspace
        skip_postgeneration_save = True

    name = factory.Sequence(lambda n: f"workspace-{n}")
    owner = factory.SubFactory(UserFactory)
    team = factory.SubFactory(TeamFactory)
    template = factory.SubFactory(TemplateFactory)
    flavor = factory.SubFactory(FlavorFactory)
    resources = factory.LazyAttribute(lambda workspace: workspace.flavor.as_request())
    amounts = factory.LazyAttribute(lambda workspace: _amounts(workspace.flavor, workspace.resources))
    state_since = factory.LazyFunction(timezone.now)
    requested_at = factory.LazyFunction(timezone.now)
    queue_entry = factory.RelatedFactory(
        "tests.factories.QueueEntryFactory", factory_related_name="workspace"
    )
    status = factory.RelatedFactory(
        "tests.factories.WorkspaceStatusFactory", factory_related_name="workspace"
    )


def _amounts(flavor: Flavor, requested: dict[str, Any]) -> dict[str, int]:
    """The charged amounts of a workspace with this flavor and these resources."""
    simulated = flavor.pool is not None and flavor.pool.simulated
    return resources.amounts_of(messages.load(requested, ResourceRequest), simulated=simulated)


def make_token(user: User, *scopes: str, **fields: Any) -> tuple[ApiToken, str]:
    """A token of the user and its secret; all scopes by default."""
    named = {"name": "test", **fields}
    token = create_token(actor=user, user=user, scopes=scopes or (Scope.ALL,), **named)
    return token.token, token.secret


def node_info(
    name: str = "node-1",
    *,
    cpu_milli: int = 8000,
    memory_mib: int = 16_384,
    gpus: int = 0,
    model: str = "NVIDIA H100 80GB HBM3",
    programs: tuple[str, ...] = PROGRAMS,
    **fields: Any,
) -> NodeInfo:
    """A host as a driver reports it, with `gpus` healthy devices."""
    return NodeInfo(
        name=name,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        disk_mib=fields.pop("disk_mib", 100_000),
        devices=fields.pop(
            "devices",
            tuple(
                DeviceInfo(uuid=f"GPU-{name}-{index}", index=index, model=model, memory_mib=81_559)
                for index in range(gpus)
            ),
        ),
        programs={program: f"/usr/bin/{program}" for program in programs},
        isolation=Isolation.SANDBOX,
        limits=LimitEnforcement.CGROUP,
        **fields,
    )


def inventory_of(*nodes: NodeInfo) -> Inventory:
    """The result of a driver's `inventory()` with these nodes."""
    return Inventory(
        nodes=nodes,
        capabilities=frozenset({Capability.WHOLE_GPU}),
        observed_at=timezone.now().timestamp(),
    )


def local_pool_with(*nodes: NodeInfo, slug: str = "this-machine") -> Pool:
    """A pool of the local driver in which these nodes have reported, without real processes."""
    pool = inventory.create_pool(
        actor=SYSTEM,
        slug=slug,
        name=f"Pool {slug}",
        driver="local",
        config={"node": nodes[0].name if nodes else "node-1"},
    )
    if nodes:
        inventory.apply_inventory(pool=pool, inventory=inventory_of(*nodes))
        pool.refresh_from_db()
    return pool


def simulated_pool(state: str, *, slug: str = "sim", **config: Any) -> Pool:
    """A simulated pool with inventory; `state` is the folder of its backend."""
    pool = inventory.create_pool(
        actor=SYSTEM,
        slug=slug,
        name=f"Simulated {slug}",
        driver="simulated",
        config={"nodes": 2, "gpus": 4, "model": "H100", "state": state, **config},
    )
    inventory.apply_inventory(pool=pool, inventory=driver_for(config_of(pool)).inventory())
    pool.refresh_from_db()
    return pool


def rescript(pool: Pool, **config: Any) -> None:
    """Change the script of a simulated pool's backend."""
    pool.config = {**pool.config, **config}
    pool.save(update_fields=["config"])


def only_node(pool: Pool) -> Node:
    return pool.nodes.get()


def create_workspace(
    *, actor: User, idempotency_key: str = "", unapproved: bool = False, **order: Any
) -> Workspace:
    """Create a workspace through the service, with the given fields."""
    creation = workspaces.create(
        actor=actor,
        order=WorkspaceOrder(**order),
        idempotency_key=idempotency_key,
        unapproved=unapproved,
    )
    return creation.workspace
