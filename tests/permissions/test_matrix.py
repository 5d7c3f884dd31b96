"""Every URL for every role, against `table.py`; a URL or method outside the table fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from http.cookies import SimpleCookie
from itertools import chain, pairwise
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from portal.catalog import entries
from portal.catalog import selectors as catalog
from portal.catalog.environments.models import EnvironmentBuild, EnvironmentVersion, VersionState
from portal.catalog.models import Flavor, Template
from portal.catalog.services import ensure_starting_catalog
from portal.common.actors import SYSTEM
from portal.common.events.models import Notification
from portal.common.events.services import notify
from portal.common.scopes import Scope
from portal.fleet.inventory.models import Node, Pool
from portal.fleet.machines.models import JoinToken, Machine
from portal.gpu_checks.models import CheckCause, GpuCheckRun
from portal.notify.channels import sending
from portal.notify.webhooks.models import Delivery
from portal.people.accounts import links, service_accounts, team_egress
from portal.people.accounts.models import ApiToken, Delegation, Role, Team, User, UserSession
from portal.people.identity.models import IdentityLink, LinkOrigin
from portal.people.service_accounts.models import TrustRule
from portal.quota.limits.models import Cohort, Grant, MemberCap, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.requests.models import AutoApproveRule, QuotaRequest
from portal.quota.reservations.models import BookingPermission, Reservation
from portal.reclaim import policy_services as policies
from portal.reclaim.models import RebalanceProposal
from portal.workspaces import dispatch, node_rpc
from portal.workspaces.gateway import file_tickets, tickets
from portal.workspaces.lifecycle import State
from portal.workspaces.models import HomeArchive, HomeEvacuation, HomeMove, HomePlace, LostHome
from portal.workspaces.orphans.models import Orphan
from tests.broker import Broker
from tests.factories import (
    PASSWORD,
    MembershipFactory,
    UserFactory,
    create_workspace,
    local_pool_with,
    make_token,
    node_info,
    outsider,
    vision,
)
from tests.permissions.table import ACTORS, ROWS, Row
from tests.suite.choice import THOROUGH
from tests.workspaces.helpers import run_until_ready
from tests.worlds import World, shared, taken_back

pytestmark = pytest.mark.django_db
HOOK = {"name": "Bot", "url": "https://example.org/", "types": ["workspace.failed"]}
CHANNEL = {"name": "Chat", "url": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"}
PLANTED = "planted-value-of-a-secret-0f8a7c"
"""The value of each secret that there is: no answer to anybody has it."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def patterns(parts: list[URLPattern | URLResolver], before: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Every URL pattern with its whole route."""
    for part in parts:
        route = before + str(part.pattern)
        if isinstance(part, URLPattern):
            yield route, part
        else:
            yield from patterns(part.url_patterns, route)


def known_as(route: str) -> str:
    """The route as in the table, where the API's routes with a trailing slash are merged."""
    return route.rstrip("/") if route.startswith("api/v1/") else route


def methods_of(view: Any) -> Iterable[str]:
    """The methods of a REST view in lower case: actions of a view set, or methods of the class."""
    actions: dict[str, str] | None = getattr(view, "actions", None)
    if actions is not None:
        return actions
    return [method.lower() for method in METHODS if hasattr(getattr(view, "cls", None), method.lower())]


ALL = list(patterns(get_resolver().url_patterns))
LISTED = {(row.method, row.route) for row in ROWS}


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
    made = services.create(actor=owner, team=team, **HOOK).endpoint
    sent = Delivery.objects.create(
        endpoint=made, type="berth.test", payload={}, state="failed", created_at=timezone.now()
    )
    return {"<uuid:webhook_id>": made.pk, "<uuid:delivery_id>": sent.pk}


def listening(user: Any) -> dict[str, Any]:
    """A channel of the user."""
    from portal.notify.channels import services

    made = services.create(actor=user, team=None, **CHANNEL, kinds=["workspaces"])
    return {"<uuid:channel_id>": made.pk}


def announced(pool: Any) -> dict[str, Any]:
    """An announcement for all; maintenance of the pool and of the site, planned for next year."""
    from portal.announcements import services
    from portal.fleet.inventory import maintenance

    made = services.create(actor=SYSTEM, text="New driver on Monday.")
    day, begin = timedelta(days=1), timezone.now() + timedelta(days=300)
    for where in (None, pool):
        maintenance.set_maintenance(
            actor=SYSTEM, pool=where, begins_at=begin, ends_at=begin + day, reason="New switch."
        )
    return {"<uuid:announcement_id>": made.pk}


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
    made = Orphan.objects.create(
        pool=pool, node="gpu-07", kind="folder", name=f"ws-{'0' * 32}", first_seen_at=now, seen_at=now
    )
    return {"<uuid:orphan_id>": made.pk}


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
    made = RebalanceProposal.objects.create(
        key="k",
        moves=moves,
        reason={"code": "moves_make_room", "params": {"milli": 1000, "moves": 1}},
        gain=20,
        proposed_at=now,
        seen_at=now,
    )
    return {"<uuid:proposal_id>": made.pk}


def closed_and_opened() -> dict[str, Any]:
    """vision's network as before, and so in its version 1."""
    for egress in ("none", ""):
        team_egress.set_egress(actor=SYSTEM, team=Team.objects.get(slug="vision"), egress=egress)
    return {"<int:number>": 1}


def secrets(people: dict[str, Any]) -> dict[str, Any]:
    """A secret TOKEN_A of bob, of vision and of JupyterLab; bob's is named."""
    from portal.workspaces.secrets import services

    of = {"bob": people["bob"], "alice": Team.objects.get(slug="vision")}
    for username, holder in (*of.items(), ("ada", Template.objects.get(slug="jupyterlab"))):
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


TRUST: dict[str, Any] = {
    "name": "deploy",
    "issuer": "https://ci.example.org",
    "audience": "berth",
    "conditions": [{"claim": "repository", "value": "octo/app"}],
}
SERVICE = "api/v1/teams/<slug:slug>/service-accounts"
NO_SESSION = ("agent/", "nodes/", "scim/", "api/v1/token-exchange")
"""What a browser's session counts for nothing at."""
MAKES_TOKENS = {
    "POST api/v1/tokens",
    "POST api/v1/tokens/<uuid:token_id>/rotate",
    "POST api/v1/teams/<slug:slug>/service-accounts/<username:username>/tokens",
    "POST api/v1/teams/<slug:slug>/service-accounts/<username:username>/trust-rules",
}


def versioned() -> dict[str, Any]:
    """A template and a flavor with two versions."""
    for model, slug in ((Template, "jupyterlab"), (Flavor, "cpu-small")):
        entry = model.objects.get(slug=slug)
        entries.change(actor=SYSTEM, entry=entry, values={"description": "As it is now."})
    return {"<int:number>": 1}


class Stage:
    """Users, and one object for each kind of URL. The workspace is bob's and runs."""

    def __init__(self, people: dict[str, Any], workspace: Any, token: Any, pool: Any) -> None:
        self.people, self.workspace, self.pool = people, workspace, pool
        self.signed_in: dict[str, str] = {}
        made = {username: make_token(person, Scope.TEAMS_READ) for username, person in people.items()}
        self.tokens = {username: secret for username, (_, secret) in made.items()}
        self.token_ids = {username: each.pk for username, (each, _) in made.items()}
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
        for one in ("<str:username>", "<username:username>"):
            route = route.replace(f"service-accounts/{one}", "service-accounts/svc-ci")
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

    def body(self, row: Row) -> dict[str, Any]:
        order = {"template": "jupyterlab", "flavor": "cpu-small", "team": "vision"}
        team = {"name": "New team", "slug": "new-team"}
        more = {"team": "vision", "resource": "gpu:h100", "amount": 500, "note": "More"}
        quota = {"team": "vision", "resource": "gpu:h100", "quota": 1000}
        cap = {"team": "vision", "resource": "gpu:h100", "amount": 1000}
        first, last = (f"{timezone.now() + timedelta(days=days):%Y-%m-%dT%H:%M}" for days in (5, 6))
        booking = {"title": "Later", "starts": first, "ends": last}
        wished = {"title": "Later", "amounts": {"gpu:h100": 1000}}
        wished |= {"starts_at": f"{first}Z", "ends_at": f"{last}Z"}
        bodies: dict[tuple[str, str], dict[str, Any]] = {
            ("POST", "sign-in/"): {"username": "bob", "password": "wrong"},
            ("POST", "welcome/<uuid:user_id>/<str:link>/"): {"password": PASSWORD, "repeated": PASSWORD},
            ("POST", "users/"): {"username": "hal", "role": "member"},
            ("POST", "api/v1/users"): {"username": "hal"},
            ("PATCH", "api/v1/users/<username:username>"): {"roles": ["operator"]},
            ("POST", "sign-in-providers/<slug:idp>/"): {"claims": '{"sub": "1"}'},
            ("POST", "sign-in-providers/<slug:idp>/link/"): {"username": "erin", "subject": "erins"},
            ("POST", "api/v1/sign-in-providers/<slug:idp>/preview"): {"claims": {"sub": "1"}},
            ("POST", "api/v1/sign-in-providers/<slug:idp>/test"): {"username": "dan"},
            ("POST", "api/v1/sign-in-providers/<slug:idp>/links"): {
                "username": "erin",
                "subject": "e",
            },
            ("POST", "account/"): {"old_password": "wrong"},
            ("POST", "account/two-step/app/"): {"code": "0"},
            ("POST", "account/two-step/passkeys/add/"): {"name": "Phone"},
            ("POST", "account/email/"): {"email": "x@example.org", "password": "wrong"},
            ("POST", "account/tokens/"): {"name": "t", "scopes": ["all"], "expires": "7"},
            ("POST", "teams/"): team,
            **{
                ("POST", f"api/v1/reclaim-policies{of}"): {"for": "site", "idle_minutes": 60}
                for of in ("", "/preview")
            },
            ("PATCH", "api/v1/reclaim-policies/<uuid:policy_id>"): {"idle_minutes": 50},
            ("POST", "reclaim-policies/new/"): {"for": "site", "idle_minutes": 60},
            ("POST", "api/v1/homes/<int:home_id>/delete"): {"confirm": "moving/bob"},
            ("POST", "reclaim-policies/<uuid:policy_id>/edit/"): {"idle_minutes": 50},
            **{("POST", route): HOOK for route in ("webhooks/", "teams/<slug:slug>/webhooks/")},
            **{("POST", f"api/v1/{of}webhooks"): HOOK for of in ("", "teams/<slug:slug>/")},
            ("POST", "webhooks/<uuid:webhook_id>/"): HOOK,
            **{
                ("POST", f"{of}/secrets/"): {"name": "TOKEN_B", "kind": "env", "value": "a value"}
                for of in ("account", "teams/<slug:slug>", "catalog/templates/<slug:slug>")
            },
            ("POST", "secrets/<uuid:secret_id>/"): {"value": "another value"},
            ("POST", "account/dotfiles/"): {"url": "https://git.example/dots"},
            ("PUT", "api/v1/teams/<slug:slug>/egress"): {"egress": "none"},
            ("PATCH", "api/v1/teams/<slug:slug>"): {"name": "Seeing"},
            ("PUT", "api/v1/me/dotfiles"): {"url": "https://git.example/dots"},
            **{
                ("PUT", f"api/v1/{of}/secrets/<str:name>"): {"value": "another value"}
                for of in ("me", "teams/<slug:slug>", "templates/<slug:slug>")
            },
            ("POST", "account/channels/"): {**CHANNEL, "types": ["workspaces"]},
            ("POST", "teams/<slug:slug>/channels/"): {**CHANNEL, "types": ["workspace.failed"]},
            ("POST", "channels/<uuid:channel_id>/"): {"name": "Another", "types": ["workspaces"]},
            ("POST", "api/v1/announcements"): {"text": "New driver."},
            ("PATCH", "api/v1/announcements/<uuid:announcement_id>"): {"kind": "warning"},
            **{
                ("PUT", f"api/v1/{of}maintenance"): {"ends_at": f"{last}Z", "reason": "New switch."}
                for of in ("", "pools/<slug:slug>/")
            },
            ("POST", "api/v1/notice-channels"): {**CHANNEL, "kinds": ["workspaces"]},
            ("PATCH", "api/v1/notice-channels/<uuid:channel_id>"): {"enabled": True},
            ("PATCH", "api/v1/webhooks/<uuid:webhook_id>"): {"name": "Another"},
            ("POST", "teams/<slug:slug>/"): {"username": "erin", "role": "member"},
            ("POST", "teams/<slug:slug>/members/<str:username>/role/"): {"role": "owner"},
            ("POST", "workspaces/new/"): order,
            ("POST", "api/v1/workspaces"): order,
            **{
                ("POST", f"api/v1/workspaces/{act}"): {"workspaces": [str(self.workspace.pk)], **more}
                for act, more in (
                    ("stop", {}),
                    ("delete", {}),
                    ("extend", {"hours": 2}),
                    ("message", {"text": "x"}),
                    ("preview", {"act": "stop"}),
                    ("move", {}),
                )
            },
            ("POST", "workspaces/act/"): {
                "act": "message",
                "text": "x",
                "confirm": "1",
                "workspace": [str(self.workspace.pk)],
            },
            ("POST", "workspaces/<uuid:workspace_id>/extend/"): {"hours": "2"},
            ("PATCH", "api/v1/workspaces/<uuid:workspace_id>"): {"priority": -1},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/extend"): {"hours": 2},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/keep"): {"hours": 2},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/resize"): {"flavor": order["flavor"]},
            ("POST", "api/v1/admission/preview"): order,
            ("POST", "api/v1/teams"): team,
            ("POST", "environments/<slug:slug>/edit/"): {"do": "about", "name": ""},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/packages/save"): {"name": "Mine"},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/files/folders"): {"path": "a"},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/files/rename"): {"path": "a", "to": "b"},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/files/delete"): {"paths": ["a"]},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/files/downloads"): {"path": "a"},
            ("POST", "api/v1/workspaces/<uuid:workspace_id>/files/uploads"): {"path": "a"},
            ("POST", "api/v1/environments"): {"name": "Mine", "source": "numpy", "team": "vision"},
            ("PATCH", "api/v1/environments/<slug:slug>"): {"description": "Plots"},
            ("POST", "api/v1/environments/<slug:slug>/preview"): {"source": "pandas"},
            ("PUT", "api/v1/teams/<slug:slug>/members/<username:username>"): {"role": "owner"},
            ("POST", "api/v1/tokens"): {"name": "t", "scopes": ["all"]},
            ("POST", f"{SERVICE}/<username:username>/tokens"): {"name": "t", "scopes": ["all"]},
            ("POST", f"{SERVICE}/<username:username>/trust-rules"): TRUST | {"scopes": ["all"]},
            ("POST", f"{SERVICE}/<username:username>/trust-rules/check"): {"claims": {}},
            ("POST", "teams/<slug:slug>/service-accounts/<str:username>/trust-rules/"): {
                **TRUST,
                "conditions": "repository = octo/app",
                "scopes": ["all"],
                "lifetime": "600",
                "max_lifetime": "21600",
            },
            ("POST", "teams/<slug:slug>/service-accounts/<str:username>/trust-rules/check/"): {
                "claims": "{}"
            },
            ("POST", SERVICE): {"name": "nightly"},
            ("PATCH", f"{SERVICE}/<username:username>"): {"description": "Builds"},
            ("POST", "teams/<slug:slug>/service-accounts/"): {"name": "nightly"},
            ("POST", "teams/<slug:slug>/service-accounts/<str:username>/tokens/"): {
                "name": "t",
                "scopes": ["all"],
                "expires": "7",
            },
            ("POST", "teams/<slug:slug>/invite/"): {"people": "dan, viewer"},
            ("POST", "api/v1/teams/<slug:slug>/invitations"): {"people": [{"who": "dan"}]},
            ("POST", "quotas/"): {"q/vision/memory_mib/-": "64", "save": "1"},
            **{
                ("POST", f"api/v1/quotas/{act}"): {
                    "changes": [{"team": "vision", "resource": "memory_mib", "quota": 65536}]
                }
                for act in ("change", "preview")
            },
            ("POST", "quotas/limits/"): {"action": "site", "resource": "gpu:h100", "amount": "4"},
            ("POST", "quotas/teams/<slug:slug>/caps/"): {"resource": "gpu:h100", "amount": "1"},
            ("POST", "quotas/teams/<slug:slug>/ledger/"): {"do": "credit", "hours": "1"},
            ("POST", "api/v1/join-requests/<uuid:join_id>/deny"): {"note": "No"},
            ("PUT", "api/v1/ledgers/<slug:slug>"): {"quota": 1},
            ("PUT", "api/v1/budgets/<slug:slug>"): {"amount_cents": 1},
            ("POST", "quotas/teams/<slug:slug>/budget/"): {"do": "set", "amount": "1"},
            ("POST", "api/v1/ledgers/<slug:slug>/credits"): {"amount": 1},
            ("POST", "calendar/"): {**booking, "team": "vision", "resource": "gpu:h100", "amount": "1"},
            ("POST", "calendar/<uuid:reservation_id>/"): {"do": "deny", "note": "No"},
            ("POST", "api/v1/reservations"): {**wished, "team": "vision"},
            ("PUT", "api/v1/reservations/<uuid:reservation_id>"): wished,
            ("POST", "api/v1/reservations/<uuid:reservation_id>/deny"): {"note": "No"},
            ("POST", "api/v1/booking-permissions"): {"username": "dan"},
            ("POST", "api/v1/quotas"): quota,
            ("PUT", "api/v1/quotas/<uuid:quota_id>"): {"quota": 1},
            ("POST", "api/v1/member-caps"): cap,
            ("PUT", "api/v1/member-caps/<uuid:cap_id>"): {"amount": 1},
            **{("POST", f"api/v1/site/{what}"): {"yaml": "berth: 1"} for what in ("plan", "apply")},
            ("POST", "api/v1/pools"): {"slug": "more", "name": "More", "driver": "local", "config": {}},
            ("PATCH", "api/v1/pools/<slug:slug>"): {"name": "Another"},
            ("POST", "api/v1/catalog/preview"): {"flavor": "cpu-small"},
            ("POST", "api/v1/machines/<uuid:machine_id>/delete"): {"confirm": "gpu-07"},
            ("POST", "api/v1/templates"): {
                "slug": "shell",
                "name": "Shell",
                "program": "bash",
                "argv": ["bash", "{port}"],
            },
            ("PATCH", "api/v1/templates/<slug:slug>"): {"description": "Another"},
            ("POST", "api/v1/flavors"): {
                "slug": "t",
                "name": "T",
                "resources": {"cpu_milli": 500, "memory_mib": 512},
            },
            ("PATCH", "api/v1/flavors/<slug:slug>"): {"description": "Another"},
            ("POST", "api/v1/cohorts"): {"slug": "new-cohort"},
            ("PUT", "api/v1/cohorts/<slug:slug>"): {"name": "Renamed"},
            ("PUT", "api/v1/site-limits/<resource:resource>"): {"amount": 1},
            ("PUT", "api/v1/rates/<resource:resource>"): {"rate_milli": 1},
            ("POST", "api/v1/quota-requests"): more,
            ("POST", "api/v1/gpu-checks"): {"device": str(self.values["<uuid:device_id>"])},
            ("POST", "api/v1/nodes/<uuid:node_id>/check-link"): {
                "with_node": str(self.values["<uuid:node_id>"])
            },
            ("POST", "api/v1/quota-requests/<uuid:request_id>/deny"): {"note": "No"},
        }
        return bodies.get((row.method, row.route), {})

    def browser(self, username: str) -> Client:
        """A new browser with the world's session of `username`, if any."""
        client = Client()
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
            return Client()
        return Client(headers={"Authorization": f"Bearer {self.tokens[username]}"})

    def ask(self, client: Client, row: Row, *, slash: bool = False) -> Any:
        in_json = row.route.startswith(("api/", "agent/", "nodes/", "scim/"))
        how: dict[str, Any] = {"content_type": "application/json"} if in_json else {}
        data = self.body(row) if row.method != "GET" else {}
        url = self.url(row.route) + ("/" if slash else "")
        answer = (
            client.get(url) if row.method == "GET" else getattr(client, row.method.lower())(url, data, **how)
        )
        assert PLANTED.encode() not in getattr(answer, "content", b""), f"{row} tells a secret"
        return answer


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
    there = Stage(people, workspace, token, pool)
    there.values |= secrets(people)
    there.values["<uuid:archive_id>"] = archive(workspace).pk
    there.values["<uuid:trust_id>"] = trusted.pk
    there.sign_in()
    return there


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World[Stage]]:
    with shared(django_db_blocker, set_up) as made:
        yield made


@pytest.fixture
def stage(world, db, settings, monkeypatch, providers) -> Iterator[Stage]:
    settings.BERTH_TOKEN_EXCHANGE_ISSUERS = [TRUST["issuer"]]
    monkeypatch.setattr(sending, "inspect_url", lambda _url: sending.SendOutcome(ok=True, service="Slack"))
    monkeypatch.setattr(tickets, "issue", lambda *_, **__: "ticket")
    monkeypatch.setattr(file_tickets, "store_ticket", lambda *_, **__: None)
    monkeypatch.setattr(node_rpc, "call", lambda *_, **__: {"packages": ["one==1"], "python": "3.12"})
    monkeypatch.setattr(dispatch, "read_logs", lambda *_, **__: "a log line\n")
    with world.met() as there:
        yield there


BY_SESSION_ALONE = {"DELETE api/v1/me"}
"""What no token does, whatever its scopes."""


ORDERS = (
    ("nobody", "charlie", "vic", "dan", "alice", "ada"),
    ("charlie", "una", "olga", "ada"),
    ("dan", "bob"),
)
"""People by what they may do, least first: a rule that is wrong moves a step of one of these."""


def at_the_steps(row: Row) -> set[str]:
    """The roles in `make test`: anonymous, an outsider, and both sides of each change in a row."""
    outcomes = dict(zip(ACTORS, row.outcomes, strict=True))
    pairs = chain.from_iterable(map(pairwise, ORDERS))
    steps = (pair for pair in pairs if outcomes[pair[0]] != outcomes[pair[1]])
    return {"nobody", "charlie"}.union(*steps)


def differences(row: Row, ask: Callable[[str], Any], *, token: bool = False) -> list[str]:
    wrong = []
    people = ACTORS if os.environ.get(THOROUGH) else at_the_steps(row)
    for username, expected in zip(ACTORS, row.outcomes, strict=True):
        if username not in people:
            continue
        if token and username == "una" and row.writes:
            expected = frozenset({403})
        if token and username != "nobody" and str(row) in BY_SESSION_ALONE:
            expected = frozenset({403})
        with taken_back():
            status = ask(username).status_code
        if status not in expected:
            wrong.append(f"{username}: {status}, not {' or '.join(map(str, sorted(expected)))}")
    return wrong


def test_every_url_is_in_the_table():
    missing = sorted({known_as(route) for route, _ in ALL} - {row.route for row in ROWS})
    assert not missing, f"say in tests/permissions/table.py who may use: {', '.join(missing)}"


def test_table_has_no_removed_urls():
    removed_routes = sorted({row.route for row in ROWS} - {known_as(route) for route, _ in ALL})
    assert not removed_routes


def test_table_has_no_duplicate_rows():
    assert len(LISTED) == len(ROWS)


def test_every_method_of_the_api_is_in_the_table():
    missing = [
        f"{method} {known_as(route)}"
        for route, pattern in ALL
        for method in METHODS
        if method.lower() in methods_of(pattern.callback) and (method, known_as(route)) not in LISTED
    ]
    assert not missing


@pytest.mark.slow("asks every address with every method")
def test_methods_outside_the_table_are_refused(stage):
    """Even for an operator. 403 counts as refused: no one has a scope for it."""
    found = []
    client = stage.browser("olga")
    for route in each_third(sorted({row.route for row in ROWS} - {"api/", "scim/"})):
        for method in METHODS:
            if (method, route) in LISTED:
                continue
            with taken_back():
                status = client.generic(method, stage.url(route)).status_code
            if status not in {401, 405}:
                found.append(f"{method} {route}: {status}")
    assert not found


def each_third(values: list[Any]) -> list[Any]:
    """In `make test`, every third of `values` from the first, where one rule decides for all."""
    return values if os.environ.get(THOROUGH) else values[::3]


def unnamed(answer: Any, row: Row, username: str) -> Any:
    """The response, after checking that the outsider cannot read the name of a hidden workspace."""
    endless = "stream" in row.route or row.route.endswith("events/")
    if username == "charlie" and row.method == "GET" and not endless:
        # Pictures of documents are no text; all else is.
        body = b"" if answer.get("Content-Type", "").startswith("image/") else answer.getvalue()
        assert b"own-work-of-bob" not in body, f"{row} names it to an outsider"
    return answer


def by_part(rows: Iterable[Row]) -> Any:
    """The rows of one part of the site per test, so that the world is created only once."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault("/".join(row.route.split("/")[: 3 if row.in_api else 1]) or ".", []).append(row)
    return pytest.mark.parametrize("rows", parts.values(), ids=parts.keys())


TOKENS_ONLY = {"api/v1/token-exchange/renew"}
"""Routes of REST that no session can use."""


@pytest.mark.slow("asks every page as several people")
@by_part(row for row in ROWS if not row.in_api)
def test_matrix_of_pages(stage, rows):
    in_a_browser(stage, rows)


@pytest.mark.thorough("`make test` asks the API with tokens, by the same policies")
@by_part(row for row in ROWS if row.in_api and row.route not in TOKENS_ONLY)
def test_matrix_of_the_api_with_sessions(stage, rows):
    in_a_browser(stage, rows)


def test_token_endpoints_refuse_sessions(stage):
    for row in ROWS:
        if row.route in TOKENS_ONLY:
            assert stage.ask(stage.browser("ada"), row).status_code == 401, row


def in_a_browser(stage, rows):
    def ask(row, username):
        return unnamed(stage.ask(stage.browser(username), row), row, username)

    wrong = [f"{row}: {line}" for row in rows for line in differences(row, partial(ask, row))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow("asks every address as several people")
@by_part(row for row in ROWS if row.in_api)
def test_matrix_of_the_api_with_tokens(stage, rows):
    def ask(row, username):
        return unnamed(stage.ask(stage.program(username), row, slash=True), row, username)

    wrong = [f"{row}: {line}" for row in rows for line in differences(row, partial(ask, row), token=True)]
    assert not wrong, "\n".join(wrong)


def _shut_out(row, username):
    return 10 if min(row.outcomes[ACTORS.index(username)]) in {401, 403, 404} else 0


@by_part(row for row in ROWS if ":" in row.scope)
def test_token_needs_the_scope(stage, rows):
    with_the_scope = each_third(rows)
    for row in rows:
        # The first allowed role; if all get 409, the first that gets that far.
        best = min(
            reversed(ACTORS),
            key=lambda username: min(row.outcomes[ACTORS.index(username)]) // 100 + _shut_out(row, username),
        )
        with taken_back():
            others = [scope for scope in Scope.values if scope not in {row.scope, Scope.ALL}]
            stage.limit_token(best, *others)
            assert stage.ask(stage.program(best), row).status_code == 403, row
        if row not in with_the_scope:
            continue
        with taken_back():
            stage.limit_token(best, row.scope)
            answered = stage.ask(stage.program(best), row)
            # A token cannot make one that may do more than itself.
            expected = {403} if str(row) in MAKES_TOKENS else row.outcomes[ACTORS.index(best)]
            assert answered.status_code in expected, row


SIGNED = {"sign-in/oidc/<slug:idp>/signed-out/", "sign-in/saml/<slug:idp>/acs/"}
"""What is sent there proves itself by its signature; no page of ours sends it."""


@by_part(
    row
    for row in ROWS
    if row.method != "GET" and not row.route.startswith(NO_SESSION) and row.route not in SIGNED
)
def test_session_writes_need_a_csrf_token(stage, rows):
    for row in each_third(rows):
        client = Client(enforce_csrf_checks=True)
        client.cookies = SimpleCookie(stage.signed_in["olga"])
        assert stage.ask(client, row).status_code == 403, row
    stage.workspace.refresh_from_db()
    assert stage.workspace.state == State.RUNNING


@pytest.mark.parametrize("username", [username for username in ACTORS if username != "nobody"])
def test_deactivated_account_is_refused(stage, username):
    user = stage.people[username]
    browser, program = stage.browser(username), stage.program(username)
    user.is_active = False
    user.save()
    assert browser.get("/").status_code == 302
    assert browser.get("/api/v1/me").status_code == 401
    assert program.get("/api/v1/me").status_code == 401


def test_lists_show_only_visible_rows(stage):
    seen = {
        username: [
            item["name"] for item in stage.program(username).get("/api/v1/workspaces").json()["results"]
        ]
        for username in ACTORS[1:]
    }
    assert seen == {
        "charlie": [],
        "vic": ["own-work-of-bob"],
        "dan": [],
        "bob": ["own-work-of-bob"],
        "alice": ["own-work-of-bob"],
        "una": ["own-work-of-bob"],
        "olga": ["own-work-of-bob"],
        "ada": ["own-work-of-bob"],
    }
    teams = {
        username: sorted(
            item["slug"] for item in stage.program(username).get("/api/v1/teams").json()["results"]
        )
        for username in ACTORS[1:]
    }
    assert teams == {
        "charlie": ["robots"],
        "vic": ["vision"],
        "dan": ["vision"],
        "bob": ["vision"],
        "alice": ["vision"],
        "una": ["moving", "robots", "vision"],
        "olga": ["moving", "robots", "vision"],
        "ada": ["moving", "robots", "vision"],
    }


def test_another_team_is_refused_like_a_missing_one(stage):
    client = stage.program("charlie")
    answers = [
        client.post(
            "/api/v1/workspaces",
            {"template": "jupyterlab", "flavor": "cpu-small", "team": team},
            content_type="application/json",
        )
        .content.decode()
        .replace(team, "TEAM")
        for team in ("vision", "nobody-has-this")
    ]
    for answer in answers:
        assert "Vision" not in answer
    bodies = [json.loads(answer) for answer in answers]
    for body in bodies:
        body.pop("request_id", None)
    assert bodies[0] == bodies[1]


PUBLIC = {
    # Sign-in pages and the theme.
    "sign-in/",
    "sign-in/second-factor/",
    "sign-in/passkey/",
    "sign-out/",
    "sign-in/forgotten/",
    "theme/",
    # Redirects to a provider and back.
    "sign-in/by/<slug:idp>/",
    "sign-in/oidc/<slug:idp>/callback/",
    "sign-in/oidc/<slug:idp>/signed-out/",
    "sign-in/oidc/<slug:idp>/left/",
    "sign-in/saml/<slug:idp>/acs/",
    "sign-in/saml/<slug:idp>/finish/",
    "sign-in/saml/<slug:idp>/metadata/",
    # Signed links.
    "welcome/<uuid:user_id>/<str:link>/",
    # Health checks have no account; metrics have their own token.
    "healthz",
    "healthz/live",
    # Requested by the front door; 401 if anonymous.
    "gateway/large-body",
    "metrics",
    "metrics/gpus",
    # Streams answer 401, which an EventSource understands; a redirect would look like an empty stream.
    "events/",
    "workspaces/<uuid:workspace_id>/events/",
}
"""Pages that answer without a session. REST and agents prove themselves by tokens of their own."""


def test_pages_need_a_sign_in_unless_listed_here():
    public = {
        route
        for route, pattern in ALL
        if not getattr(pattern.callback, "login_required", True)
        and not route.startswith(("api/", "agent/", "nodes/", "scim/"))
    }
    assert public == PUBLIC
