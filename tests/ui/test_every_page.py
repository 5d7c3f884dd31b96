"""What all pages do alike; what each shows is in its room's own tests."""

from __future__ import annotations

from typing import Any

import pytest

from portal.accounts import service_accounts, tokens
from portal.channels.models import Channel
from portal.common.actors import SYSTEM
from portal.environments import services as environments
from portal.environments.models import EnvironmentBuild
from portal.inventory.models import Device, Node
from portal.join_requests import services as join_requests
from portal.webhooks import services as webhooks
from portal.workspace_secrets import services as secrets
from tests.factories import MachineFactory, WorkspaceFactory
from tests.ui.cases import PageCase


class TestHome(PageCase):
    url, partials = "/", ("list",)


class TestNewWorkspace(PageCase):
    url, fixtures, partials = "/workspaces/new/", ("team", "local_pool"), ("choice",)


class TestWorkspace(PageCase):
    reader = "bob"

    @pytest.fixture(autouse=True)
    def _workspace(self, _stocked: None, bob: object) -> None:
        workspace = WorkspaceFactory(owner=bob, team=self.there["team"])
        self.url = f"/workspaces/{workspace.pk}/"


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


class TestServiceAccounts(PageCase):
    url = "/teams/vision/service-accounts/"


class TestServiceAccount(PageCase):
    url = "/teams/vision/service-accounts/svc-ci/"

    @pytest.fixture(autouse=True)
    def _account(self, _stocked: None) -> None:
        account = service_accounts.create(actor=SYSTEM, team=self.there["team"], name="ci")
        tokens.create_token(actor=SYSTEM, user=account, name="nightly")


class TestTrustRules(TestServiceAccount):
    url = "/teams/vision/service-accounts/svc-ci/rules/"

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
        asked, _ = join_requests.ask(actor=fay, slug="vision", text="I train the detector")  # type: ignore[arg-type]
        self.url = join_requests.url_of(asked)


class TestBookingPermissions(PageCase):
    url, reader, fixtures = "/calendar/permissions/", "petra", ("petra",)


class TestInbox(PageCase):
    url, fixtures, partials = "/inbox/", ("team", "fay"), ("live",)

    @pytest.fixture(autouse=True)
    def _asked(self, _stocked: None, fay: object) -> None:
        join_requests.ask(actor=fay, slug="vision", text="I train the detector")  # type: ignore[arg-type]


class TestPools(PageCase):
    url, fixtures = "/pools/", ("pool",)


class TestPool(PageCase):
    url, fixtures, reader = "/pools/sim/", ("pool",), "olga"


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


class TestGpus(PageCase):
    url, fixtures, partials = "/gpus/", ("pool",), ("gpus",)


class TestNode(PageCase):
    fixtures, reader = ("pool",), "olga"

    @property
    def url(self) -> str:
        return f"/gpus/nodes/{Node.objects.order_by('name')[0].pk}/"


class TestDevice(PageCase):
    fixtures, reader = ("pool",), "olga"

    @property
    def url(self) -> str:
        return f"/gpus/devices/{Device.objects.order_by('uuid')[0].pk}/"


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


class TestOwnSecrets(PageCase):
    url = "/account/secrets/"


class TestTeamSecrets(PageCase):
    url = "/teams/vision/secrets/"


class TestTemplateSecrets(PageCase):
    url, reader, fixtures = "/catalog/templates/jupyterlab/secrets/", "olga", ("team", "catalog", "olga")


class TestSecret(PageCase):
    @pytest.fixture(autouse=True)
    def _secret(self, _stocked: None, alice: object) -> None:
        made = secrets.put(actor=alice, holder=alice, name="API_KEY", value="a value")  # type: ignore[arg-type]
        self.url = f"/secrets/{made.secret.pk}/"


class TestDeleteSecret(TestSecret):
    @pytest.fixture(autouse=True)
    def _delete(self, _secret: None) -> None:
        self.url += "delete/"


class TestTokens(PageCase):
    url = "/account/tokens/"


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


class TestLimits(PageCase):
    url, fixtures, reader, partials = "/quotas/limits/", ("team", "pool"), "olga", ("board",)
