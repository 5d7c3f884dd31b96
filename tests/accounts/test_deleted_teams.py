"""Deleted teams: contents are removed, records stay, and the slug can be reused."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any, NamedTuple

import pytest
from django.test import Client
from django.utils import timezone

from portal.catalog.environments import services as environments
from portal.catalog.environments.models import Environment
from portal.catalog.models import Flavor, Template
from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotFound, StateConflict
from portal.common.events.models import Event
from portal.fleet.inventory import node_commands
from portal.fleet.inventory.models import Node
from portal.notify.channels import services as channels
from portal.notify.channels.models import Channel
from portal.notify.webhooks import services as webhooks
from portal.notify.webhooks.models import Delivery, Endpoint
from portal.people.accounts import selectors, service_accounts, services, teams, users
from portal.people.accounts.models import ApiToken, Membership, Team, User
from portal.people.accounts.team_contents import team_contents
from portal.people.identity.models import GivenPlace
from portal.quota.ledger import budgets
from portal.quota.ledger import services as ledger
from portal.quota.ledger.models import Budget, LedgerAccount
from portal.quota.limits.models import Grant, MemberCap, Quota, TeamShare
from portal.quota.requests.models import AutoApproveRule
from portal.quota.reservations.models import BookingPermission
from portal.reclaim import policy_services as policies
from portal.reclaim.models import ReclaimPolicy
from portal.reports.days import FIGURES
from portal.reports.models import Dimension, GpuDay, GpuMonth
from portal.workspaces import services as workspaces
from portal.workspaces import team_deletions
from portal.workspaces.gateway.publishing import view_of
from portal.workspaces.models import HomeDeletion, HomePlace, LostHome, Workspace
from portal.workspaces.secrets import services as secrets
from portal.workspaces.secrets.models import Secret
from provisioning.registry import driver_for
from tests import sites
from tests.factories import make_token

pytestmark = pytest.mark.django_db
WORLD = sites.simulated_machines
HOOK = {"name": "Bot", "url": "https://example.org/", "types": ["workspace.failed"]}
CHAT = {"name": "Chat", "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"}


class Used(NamedTuple):
    """A team with a workspace that has run and a service account with a token."""

    team: Team
    workspace: Workspace
    account: User
    secret: str


def homes_of(pool) -> frozenset[str]:
    return driver_for(node_commands.config_of(pool)).homes()


@pytest.fixture
def used(team, alice, bob, olga, make, pool, settle) -> Used:
    workspace = make(bob, "sim-cpu", name="run")
    settle()
    account = service_accounts.create(actor=alice, team=team, name="ci")
    _token, secret = make_token(account)
    webhook = webhooks.create(actor=alice, team=team, **HOOK).endpoint
    Delivery.objects.create(
        endpoint=webhook, type="berth.test", payload={}, state="pending", created_at=timezone.now()
    )
    channels.create(actor=alice, team=team, **CHAT, kinds=["workspace.failed"])
    secrets.put_secret(actor=alice, holder=team, name="API_KEY", value="planted", everywhere=True)
    environment = environments.create(
        actor=alice, team=team, name="Tools", source_kind="packages", source="numpy", build=False
    )
    general = Template.objects.get(slug="jupyterlab")
    Template.objects.create(
        slug="vision_lab", name="Lab", team=team, argv=general.argv, environment=environment
    )
    general.teams.add(team)
    Flavor.objects.get(slug="sim-cpu").teams.add(team)
    ledger.set_ledger(actor=olga, team=team, quota=10**9)
    budgets.set_budget(actor=olga, team=team, amount_cents=100)
    now = timezone.now()
    Quota.objects.create(team=team, resource="gpu:h100", quota=2000)
    MemberCap.objects.create(team=team, resource="gpu:h100", amount=1000)
    Grant.objects.create(team=team, resource="gpu:h100", amount=1000, starts_at=now)
    TeamShare.objects.create(team=team)
    AutoApproveRule.objects.create(
        team=team, resource="gpu:h100", amount_at_most=1000, hours_at_most=1, created_by=olga
    )
    BookingPermission.objects.create(team=team, user=bob, granted_by=olga)
    GivenPlace.objects.create(team=team, user=bob, provider="idp", role="member")
    policies.create(actor=SYSTEM, target="team:vision", values={"idle_minutes": 60})
    return Used(team, workspace, account, secret)


def of_team(team: Team) -> list[Any]:
    """Rows that reference the team, except records."""
    models = [Membership, Endpoint, Channel, Secret, Environment, LedgerAccount, Budget, Quota, MemberCap]
    models += [Grant, TeamShare, AutoApproveRule, BookingPermission, GivenPlace, ReclaimPolicy]
    models += [HomePlace, LostHome, HomeDeletion]
    rows = [row for model in models for row in model._default_manager.filter(team=team)]
    rows += Template.objects.filter(team=team, deleted_at=None)
    return [*rows, *team.offered_templates.all(), *team.offered_flavors.all()]


def start_deletion(used: Used, olga: User) -> Team:
    teams.archive(actor=olga, team=used.team)
    return teams.delete(actor=olga, team=used.team, delete_homes=True)


def finish(settle) -> None:
    settle(resting=lambda: not HomeDeletion.objects.exists())
    team_deletions.sweep()


def test_page_counts_contents_before_deletion(client, used, olga, bob):
    counts = team_contents().contents_of(used.team)
    assert (counts.members, counts.service_accounts, counts.tokens) == (2, 1, 1)
    assert (counts.workspaces, counts.active, counts.homes) == (1, 1, 1)
    assert (counts.templates, counts.environments, counts.secrets) == (1, 1, 1)
    assert (counts.webhooks, counts.channels, counts.quotas) == (1, 1, 2)
    assert counts.has_gpu_hours and counts.has_budget
    client.force_login(olga)
    url = f"/teams/{used.team.slug}/"
    page = client.get(f"{url}delete/").content.decode()
    assert "Archive the team first." in page and "Enter <strong>" not in page
    assert client.post(f"{url}delete/", {"confirm": "vision"}).status_code == 409
    teams.archive(actor=olga, team=used.team)
    page = client.get(f"{url}delete/").content.decode()
    for line in (
        "memberships: 2; the accounts are kept",
        "service accounts: 1; their valid tokens: 1",
        "<li>workspaces: 1</li>",
        "home folders with all files, on all nodes: 1",
        "secrets: 1; webhooks: 1; channels: 1",
        "GPU-hours and budget of the team",
        f"under the slug {used.team.slug_when_deleted}",
    ):
        assert line in page
    assert client.post(f"{url}delete/", {"confirm": "Vision"}).status_code == 400
    assert Team.objects.get().deletion_started_at is None
    page = client.post(f"{url}delete/", {"confirm": "vision"}, follow=True).content.decode()
    assert "This team is being deleted." in page and "1 home folder is left." in page
    assert "Restore team" not in page and "Add member" not in page
    assert "Deleting" in client.get("/teams/").content.decode()


def test_deletion_removes_contents_and_frees_the_slug(used, olga, alice, bob, pool, settle):
    team = start_deletion(used, olga)
    assert homes_of(pool) == {"vision/bob"}
    assert team.deletion_started_at is not None and team.deleted_at is None
    finish(settle)
    assert homes_of(pool) == frozenset()
    team = Team.with_deleted.get(pk=team.pk)
    assert team.deleted_at is not None
    assert of_team(team) == []
    assert not Workspace.objects.live().exists()
    assert not Team.objects.exists() and not selectors.teams_for(olga).exists()
    again = services.create_team(actor=olga, slug="vision", name="Vision", owner=alice)
    assert selectors.team_by_slug(alice, "vision") == again
    assert of_team(again) == list(again.memberships.all())
    assert team_contents().contents_of(again).homes == 0


def test_records_keep_the_deleted_team_and_a_successor_inherits_none(used, olga, alice, settle):
    day = date(2026, 11, 1)
    zeros = dict.fromkeys(FIGURES, 0)
    for sums, when in ((GpuDay, {"day": day}), (GpuMonth, {"month": day, "made_of": 1, **zeros})):
        sums.objects.create(team="", dimension=Dimension.TEAM, key="vision", **when)
        sums.objects.create(team="vision", dimension=Dimension.ALL, key="", **when)
    start_deletion(used, olga)
    finish(settle)
    team = Team.with_deleted.get(pk=used.team.pk)
    again = services.create_team(actor=olga, slug="vision", name="Vision", owner=alice)
    for sums in (GpuDay, GpuMonth):
        assert set(sums.objects.values_list("team", "key")) == {("", team.slug), (team.slug, "")}
    workspace = Workspace.objects.get(pk=used.workspace.pk)
    assert (workspace.team.name, workspace.team.slug) == ("Vision", team.slug)
    kinds = Event.objects.filter(team=team, kind__startswith="team.").order_by("id")
    assert list(kinds.values_list("kind", flat=True))[-3:] == [
        "team.archived", "team.deletion_started", "team.deleted",
    ]  # fmt: skip
    started = Event.objects.get(kind="team.deletion_started")
    assert (started.actor, started.data["slug"], started.data["homes"]) == (olga, "vision", 1)
    assert list(Event.objects.filter(team=again).values_list("kind", flat=True)) == ["team.created"]


def test_audit_and_usage_pages_show_the_deleted_team(client, used, ada, settle):
    start_deletion(used, ada)
    finish(settle)
    client.force_login(ada)
    seen = client.get("/api/v1/audit-entries", {"object": "vision", "action": "team.deleted"}).json()
    assert [row["action"] for row in seen["results"]] == ["team.deleted"]
    slug = Team.with_deleted.get(pk=used.team.pk).slug
    for url in ("/audit/", "/reports/gpu-use/", "/quotas/limits/", f"/workspaces/{used.workspace.pk}/"):
        assert client.get(url).status_code == 200
    for url in (f"/teams/{slug}/", "/teams/vision/", f"/api/v1/teams/{slug}/usage"):
        assert client.get(url).status_code == 404


def test_account_deleted_later_has_no_home_in_the_deleted_team(used, ada, bob, settle):
    start_deletion(used, ada)
    finish(settle)
    assert not bob.workspaces.homes().exists()
    users.delete(actor=ada, user=bob, delete_workspaces=True, delete_homes=True)
    assert not HomeDeletion.objects.exists()


# --- attacks ---------------------------------------------------------------------------------------


def test_tokens_webhooks_secrets_and_addresses_are_invalid_at_once(used, olga, bob):
    program = Client(headers={"Authorization": f"Bearer {used.secret}"})
    assert program.get("/api/v1/me").status_code == 200
    start_deletion(used, olga)
    assert program.get("/api/v1/me").status_code == 401
    assert not ApiToken.objects.filter(owner=used.account).exists()
    assert not User.objects.get(pk=used.account.pk).is_active
    assert not Endpoint.objects.exists() and not Delivery.objects.exists()
    assert not Channel.objects.exists() and not Secret.objects.exists()
    assert not GivenPlace.objects.exists()
    workspace = Workspace.objects.get(pk=used.workspace.pk)
    assert workspace.desired_state == "deleted"
    assert (view_of(workspace).socket, view_of(workspace).endpoint) == ("", "")


def test_team_is_hidden_from_former_members_and_outsiders(used, olga, alice, bob, charlie, with_token):
    start_deletion(used, olga)
    for user in (alice, bob, charlie):
        program = with_token(user)
        for path in ("", "/contents", "/members", "/secrets", "/webhooks", "/service-accounts", "/usage"):
            assert program.get(f"/api/v1/teams/vision{path}").status_code == 404, (user, path)
        for method in ("delete", "patch"):
            assert getattr(program, method)("/api/v1/teams/vision").status_code == 404
        assert program.post("/api/v1/teams/vision/restore").status_code == 404
        assert not selectors.chargeable_teams(user).filter(slug="vision").exists()
    with pytest.raises(NotAllowed):
        teams.delete(actor=alice, team=used.team, delete_homes=True)


def test_changes_are_refused_during_deletion(used, olga, alice, bob):
    start_deletion(used, olga)
    for act in (
        lambda: teams.restore(actor=olga, team=used.team),
        lambda: services.set_member(actor=olga, team=used.team, username="alice", role="owner"),
        lambda: service_accounts.create(actor=olga, team=used.team, name="more"),
        lambda: workspaces.start(actor=olga, workspace_id=used.workspace.pk),
    ):
        with pytest.raises((StateConflict, NotAllowed)):
            act()
    assert not used.team.memberships.exists()


def test_rows_added_during_deletion_are_deleted_too(used, olga, settle):
    start_deletion(used, olga)
    Quota.objects.create(team=used.team, resource="gpu:h100", quota=1000)
    webhooks.create(actor=olga, team=used.team, **HOOK)
    Template.objects.create(slug="vision_late", name="Late", team=used.team)
    finish(settle)
    assert of_team(used.team) == []


# --- crashes ---------------------------------------------------------------------------------------


def test_crash_at_the_start_of_deletion_leaves_the_team_archived(used, olga, monkeypatch):
    teams.archive(actor=olga, team=used.team)

    def killed(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(HomeDeletion.objects, "bulk_create", killed)
    with pytest.raises(MemoryError):
        teams.delete(actor=olga, team=used.team, delete_homes=True)
    used.team.refresh_from_db()
    assert used.team.deletion_started_at is None
    assert used.team.memberships.count() == 3
    assert Secret.objects.exists() and Endpoint.objects.exists() and Quota.objects.exists()
    assert ApiToken.objects.filter(owner=used.account, revoked_at=None).exists()


def test_sweep_finishes_deletion_after_a_crash_at_the_end(used, olga, settle, monkeypatch):
    def killed(*_: Any, **__: Any) -> None:
        raise MemoryError

    start_deletion(used, olga)
    with monkeypatch.context() as patched:
        patched.setattr(teams, "finish_deletion", killed)
        settle(resting=lambda: not HomeDeletion.objects.exists())
        assert team_deletions.sweep() == 0
    assert Template.objects.filter(team=used.team, deleted_at=None).exists()
    assert Environment.objects.filter(team=used.team).exists()
    assert Team.objects.get().slug == "vision"
    assert team_deletions.sweep() == 1
    assert team_deletions.sweep() == 0
    assert Event.objects.filter(kind="team.deleted").count() == 1


def test_deletion_waits_for_homes_on_an_unreachable_node(used, olga, settle):
    start_deletion(used, olga)
    HomeDeletion.objects.update(next_at=timezone.now() + timedelta(days=1))
    settle(resting=lambda: not Workspace.objects.live().exists())
    assert team_deletions.sweep() == 0
    assert Team.objects.get().slug == "vision"


def test_deletion_does_not_wait_for_removed_nodes(used, olga, settle):
    start_deletion(used, olga)
    HomeDeletion.objects.update(next_at=timezone.now() + timedelta(days=1))
    settle(resting=lambda: not Workspace.objects.live().exists())
    Node.objects.update(retired=True)
    assert team_deletions.sweep() == 1
    assert not HomeDeletion.objects.exists()


def test_repeated_deletion_changes_nothing(used, olga):
    start_deletion(used, olga)
    before = Event.objects.count()
    assert teams.delete(actor=olga, team=used.team, delete_homes=False).deletion_started_at is not None
    assert Event.objects.count() == before
    with pytest.raises(NotFound):
        selectors.team_by_slug(olga, used.team.slug_when_deleted)


def test_an_unused_team_is_deleted_at_once(olga):
    team = services.create_team(actor=olga, slug="typo", name="Typo", owner=olga)
    with pytest.raises(StateConflict):
        teams.delete(actor=olga, team=team)
    teams.archive(actor=olga, team=team)
    assert teams.delete(actor=olga, team=team).deleted_at is not None
    assert Event.objects.filter(kind="team.deleted").count() == 1
