"""The stage of the permission tests: users, objects and requests, once per module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.http import HttpRequest, HttpResponse
from django.test import Client
from pytest_django import DjangoDbBlocker

from portal.catalog import selectors as catalog
from portal.catalog.services import ensure_starting_catalog
from portal.common import middleware
from portal.common.actors import SYSTEM
from portal.common.errors import PortalError
from portal.common.events.models import Notification
from portal.common.events.services import notify
from portal.common.problems import plain_response
from portal.common.scopes import Scope
from portal.gpu_checks.models import CheckCause, GpuCheckRun
from portal.notify.channels import sending
from portal.people.accounts import service_accounts
from portal.people.accounts.models import ApiToken, Role, UserSession
from portal.people.service_accounts.models import TrustRule
from portal.reclaim import policy_services as policies
from portal.workspaces import dispatch, node_rpc
from portal.workspaces.gateway import file_tickets, tickets
from tests.broker import Broker
from tests.factories import (
    MembershipFactory,
    UserFactory,
    create_workspace,
    local_pool_with,
    make_token,
    node_info,
    outsider,
    vision,
)
from tests.permissions.bodies import body_of
from tests.permissions.objects import (
    PLANTED,
    TRUST,
    announced,
    archive,
    closed_and_opened,
    environment,
    hooked,
    invited,
    joining,
    left_over,
    limited,
    linked,
    listening,
    lost_home,
    machines,
    moving_home,
    requested,
    secrets,
    to_move,
    versioned,
)
from tests.permissions.table import Row
from tests.suite.choice import THOROUGH
from tests.workspaces.helpers import run_until_ready
from tests.worlds import World, shared


class Stage:
    """Users, and one object for each kind of URL. The workspace is bob's and runs."""

    def __init__(self, people: dict[str, Any], workspace: Any, token: Any, pool: Any) -> None:
        self.people, self.workspace, self.pool = people, workspace, pool
        self.signed_in: dict[str, str] = {}
        self.handler = Client().handler
        """Of all clients, so that the middleware is loaded once."""
        made = {username: make_token(person, Scope.TEAMS_READ) for username, person in people.items()}
        self.tokens = {username: secret for username, (_, secret) in made.items()}
        self.token_ids = {username: api_token.pk for username, (api_token, _) in made.items()}
        for username in people:
            self.limit_token(username, Scope.ALL)
        node = pool.nodes.get()
        # Cordoned devices can be reset.
        node.devices.filter(pk=node.devices.first().pk).update(cordoned=True)
        self.values = {
            "<uuid:workspace_id>": workspace.pk,
            "<uuid:token_id>": token.pk,
            "<uuid:node_id>": node.pk,
            "<uuid:device_id>": node.devices.first().pk,
            "<uuid:check_id>": GpuCheckRun.objects.create(
                device=node.devices.last(), cause=CheckCause.OPERATOR
            ).pk,
            "<slug:pool>": pool.slug,
            "<str:node>": node.name,
            "<int:index>": 0,
            "<int:notification_id>": Notification.objects.get(user=people["bob"], kind="test").pk,
            **requested(people["bob"]),
            **limited(),
            "<uuid:session_id>": UserSession.objects.create(user=people["bob"], key="own-work-of-bob").pk,
            "<str:username>": "dan",
            "<int:passkey_id>": Authenticator.objects.create(
                user=people["bob"], type=Authenticator.Type.WEBAUTHN, data={"name": "Phone"}
            ).pk,
            **invited(),
            **hooked(people["alice"]),
            **listening(people["bob"]),
            **announced(pool),
            **joining(),
            **machines(pool),
            **lost_home(people["bob"]),
            **moving_home(people["bob"]),
            **environment(),
            **closed_and_opened(),
            **left_over(pool),
            **to_move(workspace),
            "<username:username>": "dan",
            "<slug:form>": "csv",
            "<path:path>": "images/home.png",
            **versioned(),
            "<uuid:policy_id>": policies.create(
                actor=SYSTEM, target="team:vision", values={"idle_minutes": 60}
            ).pk,
            "<slug:idp>": linked(people["dan"]),
            "<uuid:scim_id>": people["dan"].pk,
            "<str:name>": "User",
        }

    def url(self, route: str) -> str:
        route = route.replace("secrets/<str:name>", "secrets/TOKEN_A")
        route = route.replace("docs/adr/<slug:name>", "docs/adr/0010-rooms").replace(
            "docs/<slug:name>", "docs/gpus"
        )
        for converter in ("<str:username>", "<username:username>"):
            route = route.replace(f"service-accounts/{converter}", "service-accounts/svc-ci")
        for name, value in self.values.items():
            route = route.replace(name, str(value))
        slugs = {"teams/": "vision", "pools/": self.pool.slug}
        slugs |= {
            "templates/": "jupyterlab",
            "flavors/": "cpu-small",
            "cohorts/": "research",
            "ledgers/": "vision",
            "budgets/": "vision",
            "environments/": "tools",
        }
        for prefix, slug in slugs.items():
            route = route.replace(f"{prefix}<slug:slug>", f"{prefix}{slug}")
        assert "<" not in route, f"{route}: say in Stage what it names"
        return f"/{route}"

    def browser(self, username: str) -> Client:
        """A new browser with the world's session of `username`, if any."""
        client = self._client()
        if username in self.signed_in:
            client.cookies = SimpleCookie(self.signed_in[username])
        elif username != "nobody":
            client.force_login(self.people[username], backend="django.contrib.auth.backends.ModelBackend")
        return client

    def sign_in(self) -> None:
        """Sign in all users, once for the world; changes by requests are rolled back."""
        self.signed_in = {
            username: self.browser(username).cookies.output(header="", sep=";") for username in self.people
        }

    def limit_token(self, username: str, *scopes: str) -> None:
        """Limit a token directly: an auditor may have an older writing token, which no service creates."""
        ApiToken.objects.filter(pk=self.token_ids[username]).update(scopes=list(scopes))

    def program(self, username: str) -> Client:
        """A client with the token of `username`, with all scopes or those of `limit_token`."""
        if username == "nobody":
            return self._client()
        return self._client(headers={"Authorization": f"Bearer {self.tokens[username]}"})

    def _client(self, **defaults: Any) -> Client:
        client = Client(**defaults)
        client.handler = self.handler
        return client

    def ask(self, client: Client, row: Row, *, slash: bool = False) -> Any:
        in_json = row.route.startswith(("api/", "agent/", "nodes/", "scim/"))
        options: dict[str, Any] = {"content_type": "application/json"} if in_json else {}
        data = body_of(row, self.values) if row.method != "GET" else {}
        url = self.url(row.route) + ("/" if slash else "")
        answer = (
            client.get(url)
            if row.method == "GET"
            else getattr(client, row.method.lower())(url, data, **options)
        )
        assert PLANTED.encode() not in getattr(answer, "content", b""), f"{row} tells a secret"
        return answer


def set_up(sent: Broker) -> Stage:
    """Everything on the stage, except patches, which the `stage` fixture applies."""
    alice, bob = UserFactory(username="alice"), UserFactory(username="bob")
    charlie, olga = outsider(), UserFactory(username="olga", is_operator=True)
    team = vision(owner=alice, member=bob)
    ensure_starting_catalog()
    pool = local_pool_with(node_info(gpus=2))
    dan = MembershipFactory(team=team, user=UserFactory(username="dan")).user
    UserFactory(username="erin")
    account = service_accounts.create(actor=alice, team=team, name="ci")
    trusted = TrustRule.objects.create(
        account=account, **TRUST | {"conditions": []}, scopes=["all"], lifetime_s=60, max_lifetime_s=60
    )
    workspace = create_workspace(
        actor=bob,
        team=team,
        template=catalog.template_by_slug(bob, "jupyterlab"),
        flavor=catalog.flavor_by_slug(bob, "cpu-small"),
        name="own-work-of-bob",
    )
    run_until_ready(sent, workspace)
    token, _ = make_token(bob)
    notify([bob], "test", "Something about own-work-of-bob")
    people = {"charlie": charlie, "dan": dan, "bob": bob, "alice": alice, "olga": olga}
    people["ada"] = UserFactory(username="ada", is_superuser=True)
    people["una"] = UserFactory(username="una", is_auditor=True)
    people["vic"] = MembershipFactory(team=team, user=UserFactory(username="vic"), role=Role.VIEWER).user
    stage = Stage(people, workspace, token, pool)
    stage.values |= secrets(people)
    stage.values["<uuid:archive_id>"] = archive(workspace).pk
    stage.values["<uuid:trust_id>"] = trusted.pk
    stage.sign_in()
    return stage


def refused_without_a_frame(request: HttpRequest, error: PortalError) -> HttpResponse:
    """An error page without the menu, which is most of the work of a refusal."""
    return plain_response(error.status, error.code, error.message, request)


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World[Stage]]:
    with shared(django_db_blocker, set_up) as shared_world:
        yield shared_world


@pytest.fixture
def stage(world, db, settings, monkeypatch, providers) -> Iterator[Stage]:
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = [TRUST["issuer"]]
    monkeypatch.setattr(sending, "inspect_url", lambda _url: sending.SendOutcome(ok=True, service="Slack"))
    if not os.environ.get(THOROUGH):
        monkeypatch.setattr(middleware, "error_page", refused_without_a_frame)
    monkeypatch.setattr(tickets, "issue", lambda *_, **__: "ticket")
    monkeypatch.setattr(file_tickets, "store_ticket", lambda *_, **__: None)
    monkeypatch.setattr(node_rpc, "call", lambda *_, **__: {"packages": ["one==1"], "python": "3.12"})
    monkeypatch.setattr(dispatch, "read_logs", lambda *_, **__: "a log line\n")
    with world.met() as shared_stage:
        yield shared_stage
