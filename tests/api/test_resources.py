"""Common checks of all resources; their own behavior is tested in their rooms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from portal.catalog.environments import services as environments
from portal.common.actors import SYSTEM
from portal.common.events.kinds import AuditKind
from portal.common.events.services import notify, record
from portal.fleet.announcements import services as announcements
from portal.fleet.inventory.models import Device, Node, Pool
from portal.fleet.machines.models import JoinToken
from portal.gpu_checks.models import CheckCause, GpuCheckRun
from portal.notify.channels import sending
from portal.notify.channels.models import Channel, Message
from portal.notify.webhooks import services as webhooks
from portal.notify.webhooks.models import Endpoint
from portal.people.accounts import service_accounts, tokens
from portal.people.accounts.models import Delegation, Team, User
from portal.people.identity.models import IdentityLink, LinkOrigin
from portal.people.join_requests import services as join_requests
from portal.people.service_accounts.models import TrustRule
from portal.quota.ledger import budgets
from portal.quota.ledger import services as ledger
from portal.quota.ledger.models import LedgerEntry
from portal.quota.limits.models import Cohort, Grant, MemberCap, Quota, ResourceRate, SiteLimit
from portal.quota.requests.models import AutoApproveRule, QuotaRequest
from portal.quota.reservations import permissions
from portal.quota.reservations.models import Reservation
from portal.reclaim import policy_services as reclaim_policies
from portal.reclaim.models import RebalanceProposal
from portal.workspaces.models import HomePlace, LostHome, Workspace
from tests.api.cases import CreateCase, DetailCase, ListCase
from tests.clusters import cluster_pool, waiting_at
from tests.factories import MachineFactory, UserFactory, WorkspaceFactory


def vision() -> Team:
    return Team.objects.get(slug="vision")


class TestPools(DetailCase, CreateCase):
    path, read_scope, write_scope, key, max_queries = "pools", "pools:read", "pools:write", "slug", 4
    fixtures = ("pool",)
    body = {"slug": "more", "name": "More", "driver": "local"}
    required = ("slug", "name", "driver")


class TestAnnouncements(DetailCase, CreateCase):
    path, read_scope, write_scope = "announcements", "notices:read", "pools:write"
    body, required = {"text": "New driver on Monday."}, ("text",)

    def stock(self) -> None:
        announcements.create(actor=SYSTEM, text="New cables on Friday.")


class TestNodes(DetailCase):
    path, read_scope, write_scope = "nodes", "pools:read", "pools:write"
    reader, fixtures, lacks = "bob", ("pool",), ("POST", "DELETE")
    filters = {"online=true": 2, "online=false": 0, "cordoned=true": 0, "pool=x": 0, "pool=sim": 2}


class TestDevices(DetailCase):
    path, read_scope, max_queries = "devices", "pools:read", 5
    reader, fixtures, lacks = "bob", ("pool",), ("POST", "DELETE")
    filters = {
        "pool=sim": 8,
        "model=Simulated%20H100": 8,
        "model=A100": 0,
        "node=x": 0,
        "healthy=true&present=true": 8,
        "state=free": 8,
        "state=failed": 0,
    }


class TestMachines(DetailCase):
    path, read_scope, write_scope = "machines", "pools:read", "pools:write"
    fixtures, lacks = ("local_pool",), ("POST",)
    filters = {"pool=this-machine": 2, "pool=x": 0, "name=gpu-1": 1, "state=active": 2, "state=left": 0}

    def stock(self) -> None:
        pool = Pool.objects.get(slug="this-machine")
        for name in ("gpu-1", "gpu-2"):
            MachineFactory(pool=pool, name=name)


class TestReclaimPolicies(DetailCase, CreateCase):
    path, read_scope, write_scope = "reclaim-policies", "quotas:read", "quotas:write"
    fixtures = ("catalog", "team")
    filters = {"scope=team": 1, "scope=pool": 0, "team=vision": 1, "team=x": 0}
    body = {"for": "site", "idle_gpu_minutes": 60}
    required = ("for",)

    def stock(self) -> None:
        for target in ("team:vision", "flavor:cpu-small"):
            reclaim_policies.create(actor=SYSTEM, target=target, values={"idle_minutes": 60})


class TestHomes(DetailCase):
    path, read_scope, write_scope = "homes", "workspaces:read", "workspaces:write"
    fixtures, lacks, max_queries = ("local_pool", "team"), ("POST", "PATCH", "DELETE"), 4
    filters = {"team=vision": 2, "team=x": 0, "pool=this-machine": 2, "owner=bob": 1, "archived=true": 0}

    def stock(self) -> None:
        pool = Pool.objects.get(slug="this-machine")
        for name in ("bob", "alice"):
            HomePlace.objects.create(
                owner=User.objects.get(username=name),
                team=Team.objects.get(slug="vision"),
                pool=pool,
                node=Node.objects.filter(pool=pool).first(),
                since=timezone.now(),
            )

    def absent(self) -> str:
        return "999999"


class TestRebalanceProposals(DetailCase):
    path, read_scope, write_scope = "rebalance-proposals", "pools:read", "pools:write"
    fixtures, lacks, max_queries = ("team", "bob"), ("POST", "PATCH", "DELETE"), 6
    filters = {"state=open": 2, "state=dismissed": 1, "state=applied": 0}

    def stock(self) -> None:
        workspace = WorkspaceFactory(owner=User.objects.get(username="bob"), team=vision())
        for key, state in (("a", "open"), ("b", "open"), ("c", "dismissed")):
            at = timezone.now()
            RebalanceProposal.objects.create(
                key=key,
                state=state,
                waiting=workspace if key == "b" else None,
                moves=[
                    {
                        "workspace": str(workspace.pk),
                        "generation": 1,
                        "pool": str(workspace.pk),
                        "source": {"nodes": [{"node": "gpu-07", "devices": [{"uuid": "GPU-1"}]}]},
                        "target": {"nodes": [{"node": "gpu-08", "devices": [{"uuid": "GPU-2"}]}]},
                    }
                ],
                reason={"code": "moves_make_room", "params": {"milli": 1000, "moves": 1}},
                gain=1000,
                proposed_at=at,
                seen_at=at,
            )


class TestLostHomes(ListCase):
    path, read_scope = "lost-homes", "workspaces:read"
    fixtures, lacks = ("local_pool", "team"), ("POST", "DELETE")
    filters = {
        "team=vision": 1,
        "team=x": 0,
        "pool=this-machine": 1,
        "owner=bob": 1,
        "open=true": 1,
        "open=false": 0,
    }

    def stock(self) -> None:
        LostHome.objects.create(
            owner=User.objects.get(username="bob"),
            team=Team.objects.get(slug="vision"),
            pool=Pool.objects.get(slug="this-machine"),
            node="gpu-06",
            lost_at=timezone.now(),
        )


class TestJoinTokens(ListCase):
    path, read_scope = "pools/this-machine/join-tokens", "pools:read"
    fixtures, max_queries = ("local_pool",), 4

    def stock(self) -> None:
        pool = Pool.objects.get(slug="this-machine")
        JoinToken.objects.create(pool=pool, expires_at=timezone.now() + timedelta(hours=1))


class TestTemplates(DetailCase, CreateCase):
    path, read_scope, write_scope, key = "templates", "catalog:read", "catalog:write", "slug"
    fixtures, max_queries = ("catalog",), 4
    filters = {
        "q=jupyter": 2,
        "q=nothing+like+it": 0,
        "enabled=false": 0,
        "team=vision": 0,
        "deprecated=false": 5,
    }
    body = {"slug": "shell", "name": "Shell", "program": "bash", "argv": ["bash", "{port}"]}
    required = ("slug", "name", "program", "argv")


class TestTemplatesForMembers(DetailCase):
    path, read_scope, key, max_queries = "templates", "catalog:read", "slug", 6
    reader, fixtures = "bob", ("catalog",)


class TestFlavors(DetailCase, CreateCase):
    path, read_scope, write_scope, key = "flavors", "catalog:read", "catalog:write", "slug"
    fixtures, max_queries = ("catalog",), 4
    filters = {"q=small": 1, "enabled=false": 0, "pool=sim": 0, "deprecated=true": 0}
    body = {"slug": "tiny", "name": "Tiny", "resources": {"cpu_milli": 500, "memory_mib": 512}}
    required = ("slug", "name", "resources")


class TestFlavorsForMembers(DetailCase):
    path, read_scope, key, max_queries = "flavors", "catalog:read", "slug", 5
    reader, fixtures = "bob", ("catalog",)


class TestEnvironments(DetailCase, CreateCase):
    path, read_scope, write_scope, key = "environments", "environments:read", "environments:write", "slug"
    reader, fixtures, max_queries = "alice", ("team",), 4
    body, required = {"name": "More", "source": "numpy", "team": "vision"}, ("name", "source")
    filters = {
        "search=tools": 1,
        "search=plot%20TOOLS": 1,
        "search=x": 0,
        "team=vision": 1,
        "team=x": 0,
        "kind=built": 2,
        "kind=node": 0,
        "enabled=false": 0,
        "deprecated=true": 0,
    }
    lacks = ("PUT",)

    def stock(self) -> None:
        for name, team in (("Tools", vision()), ("All", None)):
            about: dict[str, Any] = {"team": team, "description": f"For plots with {name}"}
            environments.create(
                actor=SYSTEM, name=name, source_kind="packages", source="numpy", build=False, **about
            )
        environments.create(
            actor=SYSTEM,
            team=Team.objects.create(slug="audio", name="Audio"),
            name="Theirs",
            source_kind="packages",
            source="numpy",
            build=False,
        )


class TestEnvironmentVersions(DetailCase):
    path, read_scope, key = "environments/tools/versions", "environments:read", "number"
    reader, fixtures, max_queries = "bob", ("team", "local_pool"), 5
    only_detail = frozenset({"source", "lock", "packages"})
    filters = {"state=building": 1, "state=ready": 0}
    lacks = ("POST", "DELETE")

    def stock(self) -> None:
        made = environments.create(
            actor=SYSTEM, team=vision(), name="Tools", source_kind="packages", source="numpy", build=False
        )
        environments.change_source(actor=SYSTEM, environment=made, source_kind="packages", source="pandas")

    def absent(self) -> str:
        return "77"


class TestEnvironmentBuilds(DetailCase):
    path, read_scope, write_scope = "environments/tools/builds", "environments:read", "environments:write"
    reader, fixtures, max_queries = "bob", ("team", "local_pool"), 5
    filters = {"state=queued": 1, "state=failed": 0, "version=2": 1, "version=1": 0, "node=node-1": 1}

    def stock(self) -> None:
        TestEnvironmentVersions.stock(self)  # type: ignore[arg-type]


class TestTeams(DetailCase, CreateCase):
    path, read_scope, write_scope, key = "teams", "teams:read", "teams:write", "slug"
    fixtures = ("team",)
    body, required = {"slug": "audio"}, ("slug",)


class TestMembers(ListCase):
    path, read_scope = "teams/vision/members", "teams:read"
    reader, fixtures, max_queries = "bob", ("team",), 4


class TestIdentityLinks(ListCase):
    path, read_scope, max_queries = "sign-in-providers/corp/links", "users:read", 4
    reader, fixtures = "ada", ("ada", "bob", "providers")

    def stock(self) -> None:
        bob = User.objects.get(username="bob")
        IdentityLink.objects.create(provider="corp", user=bob, subject="bobs", how=LinkOrigin.CREATED)


class TestJoinRequests(DetailCase):
    path, read_scope = "join-requests", "teams:read"
    reader, fixtures = "alice", ("team",)
    filters = {"team=vision": 2, "team=x": 0, "state=open": 2, "state=denied": 0, "requester=fay": 1}

    def stock(self) -> None:
        for name in ("fay", "gus"):
            join_requests.request_to_join(actor=UserFactory(username=name), slug="vision")


class TestJoinableTeams(ListCase):
    path, read_scope = "joinable-teams", "teams:read"
    reader, fixtures, max_queries = "charlie", ("team", "charlie"), 5
    filters = {"q=vis": 1, "q=alice": 1, "q=bob": 0}


class TestInbox(ListCase):
    path, read_scope = "inbox", "inbox:read"
    reader, fixtures, max_queries = "alice", ("team",), 12
    filters = {"kind=join": 2, "kind=quota": 0}

    def stock(self) -> None:
        for name in ("fay", "gus"):
            join_requests.request_to_join(actor=UserFactory(username=name), slug="vision")


class TestTokens(DetailCase, CreateCase):
    path, read_scope, write_scope = "tokens", "tokens:read", "tokens:write"
    reader = "bob"
    body, required, located = {"name": "ci"}, ("name",), False
    filters = {"whose=mine": 1, "owner=bob": 1, "owner=alice": 0, "kind=service": 0, "unused_days=0": 1}


class TestSecurityEvents(ListCase):
    path, read_scope, reader = "me/security-events", "audit:read", "bob"


class TestServiceAccounts(DetailCase, CreateCase):
    path, read_scope, write_scope = "teams/vision/service-accounts", "teams:read", "teams:write"
    reader, fixtures, key, max_queries = "alice", ("team",), "username", 5
    body, required = {"name": "nightly"}, ("name",)

    def stock(self) -> None:
        for name in ("ci", "docs"):
            service_accounts.create(actor=SYSTEM, team=vision(), name=name)


class TestServiceTokens(CreateCase):
    path, read_scope, write_scope = (
        "teams/vision/service-accounts/svc-ci/tokens",
        "tokens:read",
        "tokens:write",
    )
    reader, fixtures, max_queries = "alice", ("team",), 7
    body, required, located = {"name": "ci", "scopes": ["tokens:write"]}, ("name",), False

    def stock(self) -> None:
        account = service_accounts.create(actor=SYSTEM, team=vision(), name="ci")
        for name in ("one", "two"):
            tokens.create_token(actor=SYSTEM, user=account, name=name)


HOOK = {"name": "Bot", "url": "https://example.org/hooks", "types": ["workspace.failed"]}


class TestWebhooks(DetailCase, CreateCase):
    path, read_scope, write_scope = "webhooks", "webhooks:read", "webhooks:write"
    body, required = HOOK, ("name", "url", "types")

    def stock(self) -> None:
        webhooks.create(actor=SYSTEM, team=None, **HOOK)


class TestTeamWebhooks(CreateCase):
    path, read_scope, write_scope = "teams/vision/webhooks", "webhooks:read", "webhooks:write"
    reader, fixtures, max_queries = "alice", ("team",), 6
    body, required = HOOK, ("name", "url", "types")

    def stock(self) -> None:
        webhooks.create(actor=SYSTEM, team=vision(), **HOOK)


class TestDeliveries(DetailCase):
    read_scope, reader, fixtures, max_queries = "webhooks:read", "alice", ("team",), 6
    filters = {"state=pending": 1, "state=failed": 0, "type=berth.test": 1, "type=x": 0}
    lacks = ("POST", "DELETE")

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"webhooks/{Endpoint.objects.get().pk}/deliveries"

    def stock(self) -> None:
        made = webhooks.create(actor=SYSTEM, team=vision(), **HOOK)
        webhooks.send_test(actor=SYSTEM, endpoint=made.endpoint)


class TestChannels(DetailCase, CreateCase):
    path, read_scope, write_scope = "notice-channels", "webhooks:read", "webhooks:write"
    reader, fixtures = "alice", ("team",)
    body = {
        "name": "Chat",
        "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "kinds": ["requests"],
    }
    required = ("name", "url", "kinds")

    @pytest.fixture(autouse=True)
    def _no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            sending, "inspect_url", lambda _url: sending.SendOutcome(ok=True, service="Slack")
        )

    def stock(self) -> None:
        alice = User.objects.get(username="alice")
        Channel.objects.create(user=alice, name="Phone", service="ntfy", url="x", kinds=["requests"])


class TestChannelMessages(ListCase):
    read_scope, reader, fixtures, max_queries = "webhooks:read", "alice", ("team",), 4
    filters = {"state=pending": 1, "state=sent": 0}

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"notice-channels/{Channel.objects.get().pk}/messages"

    def stock(self) -> None:
        alice = User.objects.get(username="alice")
        channel = Channel.objects.create(
            user=alice, name="Phone", service="ntfy", url="x", kinds=["requests"]
        )
        Message.objects.create(channel=channel, kind="test", title="A test", created_at=timezone.now())


class TestTrustRules(DetailCase, CreateCase):
    path = "teams/vision/service-accounts/svc-ci/trust-rules"
    read_scope, write_scope = "tokens:read", "tokens:write"
    reader, fixtures, max_queries = "alice", ("team",), 7
    body = {
        "name": "deploy",
        "issuer": "https://ci.example.org",
        "audience": "berth",
        "conditions": [{"claim": "repository", "value": "octo/app"}],
        "scopes": ["tokens:write"],
    }
    required = ("name", "issuer", "audience", "conditions", "scopes")

    @pytest.fixture(autouse=True)
    def _allowed(self, settings: Any) -> None:
        settings.BERTH_TOKEN_EXCHANGE_ISSUERS = ["https://ci.example.org"]

    def stock(self) -> None:
        account = service_accounts.create(actor=SYSTEM, team=vision(), name="ci")
        for name in ("one", "two"):
            TrustRule.objects.create(
                account=account,
                name=name,
                issuer="x",
                audience="y",
                scopes=["all"],
                lifetime_s=60,
                max_lifetime_s=60,
            )


class TestNotices(ListCase):
    path, read_scope = "notifications", "notices:read"
    reader, fixtures = "bob", ("bob",)
    filters = {"unread=true": 1, "unread=false": 0, "kind=test": 1, "kind=other": 0}

    def stock(self) -> None:
        notify([User.objects.get(username="bob")], "test", "Something that bob is told")


class TestWorkspaces(DetailCase, CreateCase):
    path, read_scope, write_scope = "workspaces", "workspaces:read", "workspaces:write"
    reader, fixtures, max_queries = "bob", ("team", "local_pool"), 4
    moving = frozenset({"stages"})
    filters = {
        "name=mine": 1,
        "team=vision": 1,
        "owner=alice": 0,
        "state=stopped": 0,
        "template=x": 0,
        "flavor=x": 0,
        "pool=x": 0,
        "q=mine+vision": 1,
        "q=mine+nothing": 0,
    }
    body = {"name": "trial", "template": "jupyterlab", "flavor": "cpu-small"}
    required = ("template", "flavor")

    def stock(self) -> None:
        WorkspaceFactory(owner=User.objects.get(username="bob"), team=vision(), name="mine")


class TestWorkspaceEvents(ListCase):
    read_scope, reader, fixtures = "workspaces:read", "bob", ("team",)
    max_queries = 4

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"workspaces/{Workspace.objects.get().pk}/events"

    def stock(self) -> None:
        one = WorkspaceFactory(owner=User.objects.get(username="bob"), team=vision())
        for word in ("one", "two"):
            record(actor=SYSTEM, kind=AuditKind.WORKSPACE_LAUNCHED, message=word, workspace=one)


class TestQueue(ListCase):
    path, read_scope = "queue", "quotas:read"
    fixtures, max_queries = ("team", "pool"), 12
    filters = {"team=vision": 1, "team=x": 0}

    def stock(self) -> None:
        WorkspaceFactory(owner=User.objects.get(username="bob"), team=vision())


class TestHandedOver(ListCase):
    path, read_scope = "queue/handed-over", "quotas:read"
    fixtures, max_queries = ("team",), 12
    filters = {"team=vision": 1, "team=x": 0, "pool=cluster": 1, "pool=x": 0}

    def stock(self) -> None:
        waiting_at(cluster_pool(), owner=User.objects.get(username="bob"), team=vision())


class TestGpuChecks(DetailCase, CreateCase):
    path, read_scope, write_scope = "gpu-checks", "pools:read", "pools:write"
    fixtures, only_detail = ("pool",), frozenset({"report"})
    filters = {"pool=sim": 1, "pool=x": 0, "kind=check": 1, "kind=scrub": 0, "cause=operator": 1}
    required, created, located = ("device",), 202, False

    @property
    def body(self) -> dict[str, Any]:  # type: ignore[override]
        return {"device": str(Device.objects.order_by("uuid")[1].pk)}

    def stock(self) -> None:
        GpuCheckRun.objects.create(device=Device.objects.order_by("uuid")[0], cause=CheckCause.OPERATOR)


class TestQuotas(DetailCase, CreateCase):
    path, read_scope, write_scope = "quotas", "quotas:read", "quotas:write"
    fixtures = ("team",)
    filters = {"team=vision": 1, "team=x": 0, "resource=disk_mib": 1, "cohort=x": 0}
    body = {"team": "vision", "resource": "gpu:h100", "quota": 1000}
    required = ("resource", "quota")

    def stock(self) -> None:
        Quota.objects.create(team=vision(), resource="disk_mib", quota=1)


class TestMemberCaps(DetailCase, CreateCase):
    path, read_scope, write_scope = "member-caps", "quotas:read", "quotas:write"
    reader, fixtures = "alice", ("team",)
    filters = {"team=vision": 1, "team=x": 0, "resource=disk_mib": 1, "username=bob": 0}
    body = {"team": "vision", "resource": "gpu:h100", "amount": 1000}
    required = ("team", "resource", "amount")

    def stock(self) -> None:
        MemberCap.objects.create(team=vision(), resource="disk_mib", amount=1)


class TestCohorts(DetailCase, CreateCase):
    path, read_scope, write_scope, key = "cohorts", "quotas:read", "quotas:write", "slug"
    body, required = {"slug": "nlp"}, ("slug",)

    def stock(self) -> None:
        Cohort.objects.create(slug="research", name="Research")


class TestSiteLimits(ListCase):
    path, read_scope, lacks = "site-limits", "quotas:read", ("POST", "DELETE")

    def stock(self) -> None:
        SiteLimit.objects.create(resource="gpu:h100", amount=1)


class TestRates(ListCase):
    path, read_scope, lacks = "rates", "quotas:read", ("POST", "DELETE")

    def stock(self) -> None:
        ResourceRate.objects.create(resource="gpu:h100", rate_milli=2000)


class TestLedgers(ListCase):
    path, read_scope, fixtures, lacks = "ledgers", "quotas:read", ("team",), ("POST", "DELETE")
    max_queries = 8

    def stock(self) -> None:
        ledger.set_ledger(actor=SYSTEM, team=vision(), quota=10**9)


class TestBudgets(ListCase):
    path, read_scope, fixtures, lacks = "budgets", "quotas:read", ("team",), ("POST", "DELETE")

    def stock(self) -> None:
        budgets.set_budget(actor=SYSTEM, team=vision(), amount_cents=100_000)


class TestLedgerEntries(ListCase):
    path, read_scope, fixtures, lacks = "ledger-entries", "quotas:read", ("team",), ("POST", "DELETE")
    filters = {"team=vision": 1, "team=x": 0}

    def stock(self) -> None:
        ledger.set_ledger(actor=SYSTEM, team=vision(), quota=10**9)
        assert LedgerEntry.objects.count() == 1


class TestReservations(DetailCase, CreateCase):
    path, read_scope, write_scope = "reservations", "quotas:read", "quotas:write"
    fixtures = ("team", "pool")
    filters = {"team=vision": 1, "team=x": 0, "starts_before=2020-01-01T00:00:00Z": 0}
    required = ("team", "title", "amounts", "starts_at", "ends_at")

    @property
    def body(self) -> dict[str, Any]:  # type: ignore[override]
        start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=5)
        times = {"starts_at": start.isoformat(), "ends_at": (start + timedelta(days=1)).isoformat()}
        return {"team": "vision", "title": "Paper", "amounts": {"gpu:simulated-h100": 1000}, **times}

    def stock(self) -> None:
        start = timezone.now() + timedelta(days=1)
        Reservation.objects.create(
            team=vision(),
            title="Paper",
            amounts={"gpu": 1000},
            starts_at=start,
            ends_at=start + timedelta(hours=1),
        )


class TestBookingPermissions(ListCase):
    path, read_scope, lacks = "booking-permissions", "quotas:read", ("DELETE",)
    fixtures = ("olga", "petra")

    def stock(self) -> None:
        permissions.permit_booking(actor=User.objects.get(username="petra"), username="olga")


class TestQuotaRequests(DetailCase, CreateCase):
    path, read_scope, write_scope = "quota-requests", "quotas:read", "quotas:write"
    reader, fixtures, only_detail = "bob", ("team", "eight"), frozenset({"evidence"})
    filters = {"team=vision": 1, "state=open": 1, "state=denied": 0, "kind=quota": 0, "requester=bob": 1}
    body = {"team": "vision", "resource": "gpu:h100", "amount": 2000, "note": "The review"}
    required = ("team", "resource", "amount", "note")

    def stock(self) -> None:
        bob = User.objects.get(username="bob")
        QuotaRequest.objects.create(
            team=vision(), requester=bob, kind="member_cap", resource="workspaces", amount=1, note="More"
        )


class TestGrants(ListCase):
    path, read_scope, fixtures, lacks = "grants", "quotas:read", ("team",), ("POST", "DELETE")
    filters = {"team=vision": 1, "team=x": 0, "active=true": 1, "active=false": 0, "resource=gpu": 0}

    def stock(self) -> None:
        Grant.objects.create(team=vision(), resource="workspaces", amount=1, starts_at=timezone.now())


class TestRules(DetailCase, CreateCase):
    path, read_scope, write_scope = "auto-approve-rules", "quotas:read", "quotas:decide"
    reader, fixtures = "petra", ("team",)
    filters = {"enabled=true": 1, "enabled=false": 0, "team=x": 0, "resource=workspaces": 1}
    body = {"resource": "gpu:h100", "amount_at_most": 1000, "hours_at_most": 8}
    required = ("resource", "amount_at_most", "hours_at_most")

    def stock(self) -> None:
        AutoApproveRule.objects.create(resource="workspaces", amount_at_most=1, hours_at_most=1)


class TestDelegations(DetailCase):
    path, read_scope = "delegations", "quotas:read"
    reader, fixtures = "petra", ("petra", "olga")

    def stock(self) -> None:
        now = timezone.now()
        Delegation.objects.create(
            approver=User.objects.get(username="petra"),
            delegate=User.objects.get(username="olga"),
            starts_at=now,
            ends_at=now + timedelta(days=1),
        )


@pytest.mark.parametrize(
    ("moment", "status"),
    [("0398-06-07T23:12:07.8+22:24", 200), ("0001-01-01T00:00:00+10:00", 400), ("2026-01-01T00:00Z", 200)],
)
def test_time_offsets_are_accepted_or_refused_without_error(
    api: Any, bob: Any, moment: str, status: int
) -> None:
    answer = api(bob).get(f"reservations?{urlencode({'starts_before': moment})}")
    assert answer.status_code == status, answer.content
