"""Checks that apply to all pages; their content is tested per room."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.catalog.environments import services as environments
from portal.catalog.environments.models import EnvironmentBuild
from portal.common.actors import SYSTEM
from portal.fleet.announcements import services as announcements
from portal.fleet.inventory import maintenance
from portal.fleet.inventory.models import Device, Node
from portal.fleet.machines.models import Machine, MachineState
from portal.notify.channels.models import Channel
from portal.notify.webhooks import services as webhooks
from portal.people.accounts import service_accounts, team_egress, tokens
from portal.people.accounts.models import Membership, Role, User
from portal.people.join_requests import services as join_requests
from portal.reclaim import policy_services as reclaim_policies
from portal.reclaim.models import Discontent, ProposalState, RebalanceProposal
from portal.workspaces import node_rpc
from portal.workspaces.gateway import file_tickets
from portal.workspaces.homes import places as home_places
from portal.workspaces.models import HomeArchive, HomePlace, LostHome
from portal.workspaces.orphans.models import Orphan, OrphanKind, OrphanState
from portal.workspaces.secrets import services as secrets
from tests.factories import MachineFactory, WorkspaceFactory, make_token
from tests.ui.cases import PageCase


class TestHome(PageCase):
    url, partials = "/", ("list",)


class TestOwnGpuHours(PageCase):
    url = "/account/gpu-hours/"


class TestSecurityEvents(PageCase):
    url = "/account/security/"

    @pytest.fixture(autouse=True)
    def _event(self, _stocked: None) -> None:
        reader = User.objects.get(username=self.reader)
        tokens.create_token(actor=reader, user=reader, name="laptop")


class TestOverview(PageCase):
    url, fixtures, partials, reader = "/overview/", ("team", "pool"), ("live",), "olga"


class TestAllWorkspaces(PageCase):
    url, reader, fixtures, partials = "/workspaces/?state=running", "olga", ("team", "local_pool"), ("list",)

    @pytest.fixture(autouse=True)
    def _workspace(self, _stocked: None, bob: object) -> None:
        pool = self.there["local_pool"]
        WorkspaceFactory(owner=bob, team=self.there["team"], state="running", pool=pool, generation=1)


class TestAnnouncements(PageCase):
    reader = "olga"
    url = "/announcements/"

    @pytest.fixture(autouse=True)
    def _rows(self, _stocked: None) -> None:
        self.row = announcements.create(actor=SYSTEM, text="New driver on Monday.")


class TestChangeAnnouncement(TestAnnouncements):
    @pytest.fixture(autouse=True)
    def _page(self, _rows: None) -> None:
        self.url = f"/announcements/{self.row.pk}/"


class TestMaintenance(PageCase):
    url, fixtures, reader = "/pools/this-machine/maintenance/", ("team", "local_pool"), "olga"

    @pytest.fixture(autouse=True)
    def _set(self, _stocked: None) -> None:
        maintenance.set_maintenance(
            actor=SYSTEM,
            pool=self.there["local_pool"],
            ends_at=timezone.now() + timedelta(hours=1),
            reason="New switch.",
        )


class TestNewWorkspace(PageCase):
    url, fixtures, partials = "/workspaces/new/", ("team", "local_pool"), ("choice",)


class TestWorkspace(PageCase):
    reader = "bob"

    @pytest.fixture(autouse=True)
    def _workspace(self, _stocked: None, bob: object) -> None:
        workspace = WorkspaceFactory(owner=bob, team=self.there["team"])
        self.url = f"/workspaces/{workspace.pk}/"


class TestWorkspaceUse(TestWorkspace):
    partials = ("plots",)

    @pytest.fixture(autouse=True)
    def _page(self, _workspace: None) -> None:
        self.url += "use/"


class TestResize(TestWorkspace):
    @pytest.fixture(autouse=True)
    def _page(self, _workspace: None, local_pool: object) -> None:
        self.url += "resize/"


class TestOwnPackages(TestWorkspace):
    @pytest.fixture(autouse=True)
    def _workspace(self, _stocked: None, bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        Membership.objects.filter(user=bob).update(role=Role.OWNER)
        said = {"packages": ["polars==1.9.0"], "python": "3.12"}
        monkeypatch.setattr(node_rpc, "call", lambda *_, **__: said)
        monkeypatch.setattr(home_places, "node_of", lambda _workspace: (self.there["local_pool"], "node-1"))
        workspace = WorkspaceFactory(owner=bob, team=self.there["team"], packages_reset_after=self.reset)
        self.url = f"/workspaces/{workspace.pk}/packages/{self.rest}"

    fixtures, rest, reset = ("team", "local_pool"), "", None


class TestOwnPackagesToBeReset(TestOwnPackages):
    reset = 100  # type: ignore[assignment]


class TestOwnPackagesReset(TestOwnPackages):
    rest = "reset/"


class TestOwnPackagesSave(TestOwnPackages):
    rest = "save/"


class TestFiles(TestOwnPackages):
    page = ""

    @pytest.fixture(autouse=True)
    def _files(self, _workspace: None, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = [
            {"id": "data", "kind": "folder", "size": 4096, "changed": 1.7e9},
            {"id": "%0A<b>", "kind": "file", "size": 3, "changed": 1.7e9},
            {"id": "l", "kind": "link", "size": 3, "changed": 1.7e9},
            {"id": "p", "kind": "other", "size": 0, "changed": -1e300},
        ]
        monkeypatch.setattr(node_rpc, "call", lambda *_, **__: {"ok": {"entries": rows, "total": 900}})
        monkeypatch.setattr(file_tickets, "store_ticket", lambda *_, **__: None)
        self.url = self.url.replace("/packages/", "/files/") + self.page


class TestFilesRename(TestFiles):
    page = "rename/?path=a"


class TestFilesDelete(TestFiles):
    page = "delete/?path=a"


class TestUsers(PageCase):
    url, reader, fixtures = "/users/", "ada", ("team", "ada")


class TestUser(PageCase):
    url, reader, fixtures = "/users/bob/", "ada", ("team", "ada")


class TestDeactivate(TestUser):
    url = "/users/bob/deactivate/"


class TestSignInProviders(PageCase):
    url, reader, fixtures = "/sign-in-providers/", "ada", ("ada", "providers")


class TestSignInProvider(TestSignInProviders):
    url = "/sign-in-providers/corp/"


class TestGpuUse(PageCase):
    url, partials = "/reports/gpu-use/?team=vision", ("report",)


class TestReclaimPolicies(PageCase):
    url, reader = "/reclaim-policies/", "alice"


class TestNewReclaimPolicy(PageCase):
    url, reader, fixtures = "/reclaim-policies/new/?for=team:vision", "olga", ("team", "local_pool")


class TestReclaimPolicy(PageCase):
    rest = ""

    @pytest.fixture(autouse=True)
    def _policy(self, _stocked: None) -> None:
        given = {"idle_minutes": 60, "holidays": ["2026-12-25"], "days": ["mon"], "zone": "UTC"}
        made = reclaim_policies.create(
            actor=SYSTEM, target="team:vision", values={**given, "stop_at": "19:00"}
        )
        reclaim_policies.change(actor=SYSTEM, policy_id=made.pk, values={"idle_minutes": 0})
        self.url = f"/reclaim-policies/{made.pk}/{self.rest}"


class TestChangeReclaimPolicy(TestReclaimPolicy):
    rest = "edit/"


class TestDeleteReclaimPolicy(TestReclaimPolicy):
    rest = "delete/"


class TestRestoreReclaimPolicy(TestReclaimPolicy):
    rest = "versions/1/restore/"


class TestNewPool(PageCase):
    url, reader, fixtures = "/pools/new/", "olga", ("local_pool",)


class TestChangePool(PageCase):
    url, reader, fixtures = "/pools/this-machine/edit/", "olga", ("local_pool",)


class TestTemplates(PageCase):
    url, reader, fixtures, partials = "/catalog/templates/", "olga", ("local_pool",), ("entries",)


class TestTemplate(PageCase):
    url, reader, fixtures, partials = "/catalog/templates/jupyterlab/", "olga", ("local_pool",), ("fits",)


class TestNewTemplate(PageCase):
    url, reader, fixtures = "/catalog/templates/new/", "olga", ("local_pool",)


class TestFlavors(PageCase):
    url, fixtures, partials = "/catalog/flavors/", ("team", "local_pool"), ("entries",)


class TestFlavor(PageCase):
    url, fixtures, partials = "/catalog/flavors/cpu-small/", ("team", "local_pool"), ("fits",)


class TestChangeFlavor(PageCase):
    url, reader, fixtures = "/catalog/flavors/cpu-small/edit/", "olga", ("local_pool",)


class TestTeams(PageCase):
    url = "/teams/"


class TestTeam(PageCase):
    url = "/teams/vision/"


class TestInviteMany(PageCase):
    url = "/teams/vision/invite/"


class TestTeamUse(PageCase):
    url, partials = "/teams/vision/use/", ("plots",)


class TestTeamNetwork(PageCase):
    url, reader = "/teams/vision/egress/", "alice"

    @pytest.fixture(autouse=True)
    def _versions(self, _stocked: None) -> None:
        for host in ("packages.example", "*.example.org"):
            team_egress.set_egress(actor=SYSTEM, team=self.there["team"], egress="list", egress_allow=host)


class TestServiceAccounts(PageCase):
    url = "/teams/vision/service-accounts/"


class TestServiceAccount(PageCase):
    url = "/teams/vision/service-accounts/svc-ci/"

    @pytest.fixture(autouse=True)
    def _account(self, _stocked: None) -> None:
        account = service_accounts.create(actor=SYSTEM, team=self.there["team"], name="ci")
        tokens.create_token(actor=SYSTEM, user=account, name="nightly")


class TestTrustRules(TestServiceAccount):
    url = "/teams/vision/service-accounts/svc-ci/trust-rules/"

    @pytest.fixture(autouse=True)
    def _allowed(self, settings: Any) -> None:
        settings.BERTH_TOKEN_EXCHANGE_ISSUERS = ["https://ci.example.org"]


class TestServiceAccountDelete(TestServiceAccount):
    url = "/teams/vision/service-accounts/svc-ci/delete/"


class TestSiteTokens(PageCase):
    url, reader = "/tokens/", "olga"


class TestHomeWithoutATeam(PageCase):
    url, reader, fixtures, partials = "/", "fay", ("team", "fay"), ("no-team",)


class TestJoin(PageCase):
    url, reader, fixtures = "/join/", "fay", ("team", "fay")


class TestAskToJoin(PageCase):
    url, reader, fixtures = "/join/teams/vision/", "fay", ("team", "fay")


class TestJoinRequest(PageCase):
    fixtures, partials = ("team", "fay"), ("live",)

    @pytest.fixture(autouse=True)
    def _asked(self, _stocked: None, fay: object) -> None:
        asked, _ = join_requests.request_to_join(actor=fay, slug="vision", text="I train the detector")  # type: ignore[arg-type]
        self.url = join_requests.url_of(asked)


class TestBookingPermissions(PageCase):
    url, reader, fixtures = "/calendar/permissions/", "petra", ("petra",)


class TestInbox(PageCase):
    url, fixtures, partials = "/inbox/", ("team", "fay"), ("live",)

    @pytest.fixture(autouse=True)
    def _asked(self, _stocked: None, fay: object) -> None:
        join_requests.request_to_join(actor=fay, slug="vision", text="I train the detector")  # type: ignore[arg-type]


class TestSearch(PageCase):
    url, fixtures, partials = "/search/?q=vision", ("team",), ("results",)


class TestPools(PageCase):
    url, fixtures = "/pools/", ("pool",)


class TestPool(PageCase):
    url, fixtures, reader = "/pools/sim/", ("pool",), "olga"


class TestPoolUse(PageCase):
    url, fixtures, partials = "/pools/sim/use/", ("pool",), ("plots",)


class TestMachines(PageCase):
    url, fixtures, reader, partials = "/pools/this-machine/machines/", ("local_pool",), "olga", ("live",)

    @pytest.fixture(autouse=True)
    def _joined(self, _stocked: None) -> None:
        self.machine = MachineFactory(pool=self.there["local_pool"])


class TestRevokeMachine(TestMachines):
    partials = ()

    @pytest.fixture(autouse=True)
    def _asked(self, _joined: None) -> None:
        self.url = f"/machines/{self.machine.pk}/revoke/"


class TestRemoveMachine(TestMachines):
    partials = ()

    @pytest.fixture(autouse=True)
    def _asked(self, _joined: None) -> None:
        Machine.objects.update(state=MachineState.REVOKED)
        self.url = f"/machines/{self.machine.pk}/delete/"


class TestLeftOver(PageCase):
    url, fixtures, reader, partials = "/orphans/", ("local_pool",), "olga", ("live",)
    kind = OrphanKind.FOLDER

    @pytest.fixture(autouse=True)
    def _found(self, _stocked: None) -> None:
        now = timezone.now()
        made = [
            Orphan(pool=self.there["local_pool"], node="n", kind=kind, name=f"vision/{kind}-{state}",
                state=state, size_mib=12, first_seen_at=now, seen_at=now, ended_at=now)
            for kind in OrphanKind
            for state in OrphanState
        ]  # fmt: skip
        Orphan.objects.bulk_create(made)
        self.orphan = Orphan.objects.get(kind=self.kind, state=OrphanState.FOUND)


class TestRemoveLeftOver(TestLeftOver):
    partials, kind = (), OrphanKind.HOME

    @pytest.fixture(autouse=True)
    def _asked(self, _found: None) -> None:
        self.url = f"/orphans/{self.orphan.pk}/delete/"


class TestRebalancing(PageCase):
    url, fixtures, reader, partials = "/rebalancing/", ("team", "bob", "local_pool"), "olga", ("live",)

    @pytest.fixture(autouse=True)
    def _proposed(self, _stocked: None) -> None:
        now = timezone.now()
        workspace = WorkspaceFactory(
            owner=User.objects.get(username="bob"),
            team=self.there["team"],
            state="running",
            generation=1,
            pool=self.there["local_pool"],
        )
        slowed = {
            "code": "gpu_slowed",
            "params": {"percent": 80, "clock_mhz": 1000, "best_mhz": 1980},
        }
        for state in ProposalState.values:
            self.proposal = RebalanceProposal.objects.create(
                key=state,
                state=state,
                moves=[
                    {
                        "workspace": str(workspace.pk),
                        "generation": 1,
                        "pool": str(workspace.pk),
                        "source": {"nodes": [{"node": "gpu-07", "devices": [{"uuid": "GPU-1"}]}]},
                        "target": {"nodes": [{"node": "gpu-08", "devices": []}]},
                    }
                ],
                reason=slowed,
                gain=50,
                proposed_at=now,
                seen_at=now,
                decided_at=None if state == ProposalState.OPEN else now,
                decided_by="" if state == ProposalState.OPEN else "olga",
            )
        Discontent.objects.create(
            workspace=workspace, generation=1, score=50, reason=slowed, since=now, observed_at=now
        )


class TestApplyProposal(TestRebalancing):
    partials = ()

    @pytest.fixture(autouse=True)
    def _asked(self, _proposed: None) -> None:
        self.url = f"/rebalancing/{self.proposal.pk}/apply/"


class TestHomes(PageCase):
    url, fixtures, reader = "/homes/", ("local_pool", "team"), "bob"

    @pytest.fixture(autouse=True)
    def _lost(self, _stocked: None) -> None:
        self.lost = LostHome.objects.create(
            owner=User.objects.get(username="bob"),
            team=self.there["team"],
            pool=self.there["local_pool"],
            node="gpu-06",
            lost_at=timezone.now(),
        )


class TestDeleteHome(PageCase):
    fixtures, reader = ("local_pool", "team", "ada"), "ada"

    @pytest.fixture(autouse=True)
    def _archived(self, _stocked: None) -> None:
        user, team, pool = User.objects.get(username="bob"), self.there["team"], self.there["local_pool"]
        now, node = timezone.now(), Node.objects.filter(pool=pool).first()
        place = HomePlace.objects.create(owner=user, team=team, pool=pool, node=node, since=now)
        HomeArchive.objects.create(
            owner=user, team=team, pool=pool, node=node, node_name="x", name="x", state="ready", open=False,
            asked_at=now, made_at=now, away_at=now, next_at=now, empties=True,
        )  # fmt: skip
        self.url = f"/homes/{place.pk}/delete/"


class TestArchivedHomes(TestDeleteHome):
    @pytest.fixture(autouse=True)
    def _listed(self, _archived: None) -> None:
        self.url = "/homes/archived/"


class TestRecreateHome(TestHomes):
    @pytest.fixture(autouse=True)
    def _asked(self, _lost: None) -> None:
        self.url = f"/homes/lost/{self.lost.pk}/recreate/"


class TestGpus(PageCase):
    url, fixtures, partials = "/gpus/", ("pool",), ("gpus",)


class TestNode(PageCase):
    fixtures, reader = ("pool",), "olga"

    @property
    def url(self) -> str:
        return f"/gpus/nodes/{Node.objects.order_by('name')[0].pk}/"


class TestNodeUse(TestNode):
    partials = ("plots",)

    @property
    def url(self) -> str:
        return f"{super().url}use/"


class TestDevice(PageCase):
    fixtures, reader = ("pool",), "olga"

    @property
    def url(self) -> str:
        return f"/gpus/devices/{Device.objects.order_by('uuid')[0].pk}/"


class TestReset(TestDevice):
    @pytest.fixture(autouse=True)
    def _out(self, _stocked: None) -> None:
        Device.objects.update(cordoned=True)

    @property
    def url(self) -> str:
        return f"{super().url}reset/"


class TestNodeLocation(TestNode):
    @property
    def url(self) -> str:
        return f"{super().url}location/"


class TestDrain(TestNode):
    @property
    def url(self) -> str:
        return f"{super().url}drain/"


class TestAccount(PageCase):
    url = "/account/"


class TestAccountDelete(PageCase):
    url, reader = "/account/delete/", "bob"

    @pytest.fixture(autouse=True)
    def _allowed(self, settings: Any) -> None:
        settings.BERTH_ACCOUNT_DELETION = "on"


HOOK = {"name": "Bot", "url": "https://example.org/hooks", "types": ["workspace.failed"]}


class TestSiteWebhooks(PageCase):
    url, reader = "/webhooks/", "olga"


class TestTeamWebhooks(PageCase):
    url = "/teams/vision/webhooks/"


class TestWebhook(PageCase):
    partials = ("log",)

    @pytest.fixture(autouse=True)
    def _webhook(self, _stocked: None, alice: object) -> None:
        made = webhooks.create(actor=alice, team=self.there["team"], **HOOK).endpoint
        self.url = f"/webhooks/{made.pk}/"


class TestEnvironments(PageCase):
    url, partials = "/environments/", ("list",)

    @pytest.fixture(autouse=True)
    def _made(self, _stocked: None, local_pool: object) -> None:
        made = environments.create(
            actor=SYSTEM, team=self.there["team"], name="Tools", source_kind="packages", source="numpy"
        )
        self.build = EnvironmentBuild.objects.get(version__environment=made)


class TestNewEnvironment(PageCase):
    url = "/environments/new/"


class TestEnvironment(TestEnvironments):
    url, partials = "/environments/tools/", ()


class TestChangeEnvironment(TestEnvironments):
    url, partials = "/environments/tools/edit/", ()


class TestDeleteEnvironment(TestEnvironments):
    url, partials = "/environments/tools/delete/", ()


class TestBuild(TestEnvironments):
    partials = ()

    @pytest.fixture(autouse=True)
    def _of_the_build(self, _made: None) -> None:
        self.url = f"/environments/tools/builds/{self.build.pk}/"


class TestTwoStep(PageCase):
    url = "/account/two-step/"


class TestApp(PageCase):
    url = "/account/two-step/app/"


class TestAddPasskey(PageCase):
    url = "/account/two-step/passkeys/add/"


class TestConfirmIdentity(PageCase):
    url = "/account/confirm/"


class TestResetMfa(TestUser):
    url = "/users/bob/reset-mfa/"


class TestOwnChannels(PageCase):
    url = "/account/channels/"


class TestTeamChannels(PageCase):
    url = "/teams/vision/channels/"


class TestChannel(PageCase):
    partials = ("log",)

    @pytest.fixture(autouse=True)
    def _channel(self, _stocked: None, alice: object) -> None:
        made = Channel.objects.create(user=alice, name="Phone", service="ntfy", url="x", kinds=["requests"])
        self.url = f"/channels/{made.pk}/"


class TestDotfiles(PageCase):
    url = "/account/dotfiles/"


class TestOwnSecrets(PageCase):
    url = "/account/secrets/"


class TestTeamSecrets(PageCase):
    url = "/teams/vision/secrets/"


class TestTemplateSecrets(PageCase):
    url, reader, fixtures = "/catalog/templates/jupyterlab/secrets/", "olga", ("team", "catalog", "olga")


class TestSecret(PageCase):
    @pytest.fixture(autouse=True)
    def _secret(self, _stocked: None, alice: object) -> None:
        made = secrets.put_secret(actor=alice, holder=alice, name="API_KEY", value="a value")  # type: ignore[arg-type]
        self.url = f"/secrets/{made.secret.pk}/"


class TestDeleteSecret(TestSecret):
    @pytest.fixture(autouse=True)
    def _delete(self, _secret: None) -> None:
        self.url += "delete/"


class TestTokens(PageCase):
    url = "/account/tokens/"


class TestTokenRevoke(PageCase):
    @pytest.fixture(autouse=True)
    def _token(self, _stocked: None, alice: User) -> None:
        self.url = f"/account/tokens/{make_token(alice)[0].pk}/revoke/"


class TestNotices(PageCase):
    url = "/notifications/"


class TestQueue(PageCase):
    url, fixtures = "/queue/", ("team", "pool")


class TestCalendar(PageCase):
    url, fixtures = "/calendar/", ("team", "pool")


class TestAsk(PageCase):
    url, fixtures = "/quotas/ask/", ("team", "pool")


class TestApprovals(PageCase):
    url = "/quotas/approvals/"


class TestRules(PageCase):
    url, fixtures, reader = "/quotas/rules/", ("team",), "petra"


class TestQuotaMatrix(PageCase):
    url, fixtures, reader = "/quotas/", ("team", "pool"), "olga"


class TestLimits(PageCase):
    url, fixtures, reader, partials = "/quotas/limits/", ("team", "pool"), "olga", ("board",)
