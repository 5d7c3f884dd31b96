"""Objects that the routes of the table name, one for each kind of URL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from portal.catalog import entries
from portal.catalog.environments.models import EnvironmentBuild, EnvironmentVersion, VersionState
from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.fleet.inventory.models import Node, Pool
from portal.fleet.machines.models import JoinToken, Machine
from portal.notify.webhooks.models import Delivery
from portal.people.accounts import links, team_egress
from portal.people.accounts.models import Delegation, Team, User
from portal.people.identity.models import IdentityLink, LinkOrigin
from portal.quota.limits.models import Cohort, Grant, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.requests.models import AutoApproveRule, QuotaRequest
from portal.quota.reservations.models import BookingPermission, Reservation
from portal.reclaim.models import RebalanceProposal
from portal.workspaces.models import HomeArchive, HomeEvacuation, HomeMove, HomePlace, LostHome
from portal.workspaces.orphans.models import Orphan
from tests.factories import (
    UserFactory,
    local_pool_with,
)

TRUST: dict[str, Any] = {
    "name": "deploy",
    "issuer": "https://ci.example.org",
    "audience": "berth",
    "conditions": [{"claim": "repository", "value": "octo/app"}],
}
HOOK = {"name": "Bot", "url": "https://example.org/", "types": ["workspace.failed"]}
CHANNEL = {"name": "Chat", "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"}
PLANTED = "planted-value-of-a-secret-0f8a7c"
"""The value of each stored secret, which no response may contain."""


def requested(user: Any) -> dict[str, Any]:
    """Open requests of the user for a limit and a grant, a rule, and another user's delegation."""
    team = Team.objects.get(slug="vision")
    now = timezone.now()
    cap: dict[str, Any] = {"team": team, "user": user, "resource": "workspaces"}
    MemberCap.objects.create(**cap, amount=9)
    request = QuotaRequest.objects.create(
        team=team, requester=user, kind="member_cap", resource="workspaces", amount=1, note="More"
    )
    rule = AutoApproveRule.objects.create(resource="workspaces", amount_at_most=1, hours_at_most=1)
    petra, paul = (UserFactory(username=name, is_approver=True) for name in ("petra", "paul"))
    lent = Delegation.objects.create(
        approver=petra, delegate=paul, starts_at=now, ends_at=now + timedelta(days=1)
    )
    return {
        "<uuid:request_id>": request.pk,
        "<uuid:grant_id>": Grant.objects.create(**cap, amount=1, starts_at=now).pk,
        "<uuid:rule_id>": rule.pk,
        "<uuid:delegation_id>": lent.pk,
    }


def limited() -> dict[str, Any]:
    """A quota and a limit of vision, which is in the cohort research."""
    from portal.quota.ledger import budgets, services

    team = Team.objects.get(slug="vision")
    cohort = Cohort.objects.create(slug="research", name="Research")
    TeamShare.objects.create(team=team, cohort=cohort)
    SiteLimit.objects.create(resource="gpu:h100", amount=1 << 30)
    ResourceRate.objects.create(resource="gpu:h100", rate_milli=2000)
    quota = Quota.objects.create(team=team, resource="disk_mib", quota=1 << 30)
    cap = MemberCap.objects.create(team=team, resource="disk_mib", amount=1 << 30)
    now = timezone.now()
    booked = Reservation.objects.create(
        team=team,
        title="Paper",
        amounts={"gpu:h100": 1000, "gpu": 1000},
        starts_at=now + timedelta(days=1),
        ends_at=now + timedelta(days=2),
    )
    services.set_ledger(actor=SYSTEM, team=team, quota=10**12)
    budgets.set_budget(actor=SYSTEM, team=team, amount_cents=10**6)
    percy = UserFactory(username="percy", is_approver=True)
    bob = User.objects.get(username="bob")
    permission = BookingPermission.objects.create(user=bob, granted_by=percy)
    return {
        "<uuid:permission_id>": permission.pk,
        "<uuid:reservation_id>": booked.pk,
        "<uuid:quota_id>": quota.pk,
        "<uuid:cap_id>": cap.pk,
        "<resource:resource>": "gpu:h100",
    }


def hooked(owner: Any) -> dict[str, Any]:
    """A webhook of vision, and its delivery."""
    from portal.notify.webhooks import services

    team = Team.objects.get(slug="vision")
    endpoint = services.create(actor=owner, team=team, **HOOK).endpoint
    sent = Delivery.objects.create(
        endpoint=endpoint, type="berth.test", payload={}, state="failed", created_at=timezone.now()
    )
    return {"<uuid:webhook_id>": endpoint.pk, "<uuid:delivery_id>": sent.pk}


def listening(user: Any) -> dict[str, Any]:
    """A channel of the user."""
    from portal.notify.channels import services

    channel = services.create(actor=user, team=None, **CHANNEL, kinds=["workspaces"])
    return {"<uuid:channel_id>": channel.pk}


def announced(pool: Any) -> dict[str, Any]:
    """An announcement for all; maintenance of the pool and of the site, planned for next year."""
    from portal.fleet.announcements import services
    from portal.fleet.inventory import maintenance

    announcement = services.create(actor=SYSTEM, text="New driver on Monday.")
    day, begin = timedelta(days=1), timezone.now() + timedelta(days=300)
    for where in (None, pool):
        maintenance.set_maintenance(
            actor=SYSTEM, pool=where, begins_at=begin, ends_at=begin + day, reason="New switch."
        )
    return {"<uuid:announcement_id>": announcement.pk}


def environment() -> dict[str, Any]:
    """The environment tools of vision: version 1 is ready, version 2 is being built."""
    from portal.catalog.environments import services

    made = services.create(
        actor=SYSTEM,
        team=Team.objects.get(slug="vision"),
        name="Tools",
        source_kind="packages",
        source="numpy",
        build=False,
    )
    EnvironmentVersion.objects.update(state=VersionState.READY, digest="ab" * 16)
    services.restore(actor=SYSTEM, environment=made, number=1)
    services.rebuild(actor=SYSTEM, environment=made)
    return {"<int:number>": 1, "<uuid:build_id>": EnvironmentBuild.objects.get().pk}


def left_over(pool: Any) -> dict[str, Any]:
    """A folder without owner."""
    now = timezone.now()
    orphan = Orphan.objects.create(
        pool=pool, node="gpu-07", kind="folder", name=f"ws-{'0' * 32}", first_seen_at=now, seen_at=now
    )
    return {"<uuid:orphan_id>": orphan.pk}


def to_move(workspace: Any) -> dict[str, Any]:
    """A proposal to move a workspace that no longer runs as it did."""
    now = timezone.now()
    place = {"nodes": [{"node": "gpu-07", "devices": [], "repartitions": []}]}
    moves = [
        {
            "workspace": str(workspace.pk),
            "generation": workspace.generation + 7,
            "pool": str(workspace.pool_id or workspace.pk),
            "source": place,
            "target": place,
        }
    ]
    proposal = RebalanceProposal.objects.create(
        key="k",
        moves=moves,
        reason={"code": "moves_make_room", "params": {"milli": 1000, "moves": 1}},
        gain=20,
        proposed_at=now,
        seen_at=now,
    )
    return {"<uuid:proposal_id>": proposal.pk}


def closed_and_opened() -> dict[str, Any]:
    """A changed and restored network of vision, so that version 1 exists."""
    for egress in ("none", ""):
        team_egress.set_egress(actor=SYSTEM, team=Team.objects.get(slug="vision"), egress=egress)
    return {"<int:number>": 1}


def secrets(people: dict[str, Any]) -> dict[str, Any]:
    """A secret TOKEN_A of bob, of vision and of JupyterLab; bob's is named."""
    from portal.workspaces.secrets import services

    holders = {"bob": people["bob"], "alice": Team.objects.get(slug="vision")}
    for username, holder in (*holders.items(), ("ada", Template.objects.get(slug="jupyterlab"))):
        services.put_secret(actor=people[username], holder=holder, name="TOKEN_A", value=PLANTED)
    return {"<uuid:secret_id>": people["bob"].secrets.get().pk}


def machines(pool: Any) -> dict[str, Any]:
    """A machine of the pool, and a join token for another."""
    now = timezone.now()
    machine = Machine.objects.create(
        name="gpu-07", pool=pool, gateway_port=8646, certificate_expires_at=now, joined_at=now
    )
    token = JoinToken.objects.create(pool=pool, expires_at=now + timedelta(hours=1))
    return {"<uuid:machine_id>": machine.pk, "<uuid:join_token_id>": token.pk}


def lost_home(user: Any) -> dict[str, Any]:
    """The user's home in vision, on a removed machine of another pool."""
    team, pool = Team.objects.get(slug="vision"), local_pool_with(slug="elsewhere")
    lost = LostHome.objects.create(owner=user, team=team, pool=pool, node="gpu-06", lost_at=timezone.now())
    return {"<uuid:lost_home_id>": lost.pk}


def moving_home(user: Any) -> dict[str, Any]:
    """A home of the user that is being moved; the one in vision stays usable."""
    team, pool, now = (
        Team.objects.create(slug="moving", name="Moving"),
        Pool.objects.get(slug="elsewhere"),
        timezone.now(),
    )
    node = Node.objects.create(pool=pool, name="gpu-07")
    place = HomePlace.objects.create(owner=user, team=team, pool=pool, node=node, since=now)
    move = HomeMove.objects.create(
        owner=user,
        team=team,
        pool=pool,
        source=node,
        source_name="a",
        target_name="b",
        asked_at=now,
        next_at=now,
    )
    leaves = HomeEvacuation.objects.create(
        pool=pool, source=node, source_name="a", target_name="b", homes=1, asked_at=now, next_at=now
    )
    return {
        "<int:home_id>": place.pk,
        "<uuid:home_move_id>": move.pk,
        "<uuid:home_evacuation_id>": leaves.pk,
    }


def joining() -> dict[str, Any]:
    """A request to join vision."""
    from portal.people.join_requests import services

    return {
        "<uuid:join_id>": services.request_to_join(actor=UserFactory(username="iris"), slug="vision")[0].pk
    }


def invited() -> dict[str, Any]:
    """An invitation link."""
    gina = UserFactory(username="gina", password=None)
    return {
        "<uuid:user_id>": gina.pk,
        "<str:link>": links.make(gina, links.LinkKind.INVITATION).rstrip("/").rpartition("/")[2],
    }


def linked(user: Any) -> str:
    """A sign-in provider with a link of the user."""
    IdentityLink.objects.create(user=user, provider="corp", subject="dans", how=LinkOrigin.CREATED)
    return "corp"


def versioned() -> dict[str, Any]:
    """A template and a flavor with two versions."""
    for model, slug in ((Template, "jupyterlab"), (Flavor, "cpu-small")):
        entry = model.objects.get(slug=slug)
        entries.change(actor=SYSTEM, entry=entry, values={"description": "As it is now."})
    return {"<int:number>": 1}


def archive(workspace: Any) -> Any:
    """An archive of the home that the workspace uses."""
    now, node = timezone.now(), Node.objects.get(pool=workspace.pool)
    return HomeArchive.objects.create(
        owner=workspace.owner,
        team=workspace.team,
        pool=workspace.pool,
        node=node,
        node_name=node.name,
        name="before",
        state="ready",
        open=False,
        asked_at=now,
        made_at=now,
        next_at=now,
    )
