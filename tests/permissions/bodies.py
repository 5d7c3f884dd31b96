"""Bodies of valid requests, by row of the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from tests.factories import (
    PASSWORD,
)
from tests.permissions.objects import CHANNEL, HOOK, TRUST
from tests.permissions.table import Row

SERVICE = "api/v1/teams/<slug:slug>/service-accounts"


def body_of(row: Row, values: dict[str, Any]) -> dict[str, Any]:
    """The body of a valid request; empty if the row needs none. `values` is that of the stage."""
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
            ("POST", f"api/v1/reclaim-policies{prefix}"): {"for": "site", "idle_minutes": 60}
            for prefix in ("", "/preview")
        },
        ("PATCH", "api/v1/reclaim-policies/<uuid:policy_id>"): {"idle_minutes": 50},
        ("POST", "reclaim-policies/new/"): {"for": "site", "idle_minutes": 60},
        ("POST", "api/v1/homes/<int:home_id>/delete"): {"confirm": "moving/bob"},
        ("POST", "reclaim-policies/<uuid:policy_id>/edit/"): {"idle_minutes": 50},
        **{("POST", route): HOOK for route in ("webhooks/", "teams/<slug:slug>/webhooks/")},
        **{("POST", f"api/v1/{prefix}webhooks"): HOOK for prefix in ("", "teams/<slug:slug>/")},
        ("POST", "webhooks/<uuid:webhook_id>/"): HOOK,
        **{
            ("POST", f"{prefix}/secrets/"): {"name": "TOKEN_B", "kind": "env", "value": "a value"}
            for prefix in ("account", "teams/<slug:slug>", "catalog/templates/<slug:slug>")
        },
        ("POST", "secrets/<uuid:secret_id>/"): {"value": "another value"},
        ("POST", "account/dotfiles/"): {"url": "https://git.example/dots"},
        ("PUT", "api/v1/teams/<slug:slug>/egress"): {"egress": "none"},
        ("PATCH", "api/v1/teams/<slug:slug>"): {"name": "Seeing"},
        ("PUT", "api/v1/me/dotfiles"): {"url": "https://git.example/dots"},
        **{
            ("PUT", f"api/v1/{prefix}/secrets/<str:name>"): {"value": "another value"}
            for prefix in ("me", "teams/<slug:slug>", "templates/<slug:slug>")
        },
        ("POST", "account/channels/"): {**CHANNEL, "types": ["workspaces"]},
        ("POST", "teams/<slug:slug>/channels/"): {**CHANNEL, "types": ["workspace.failed"]},
        ("POST", "channels/<uuid:channel_id>/"): {"name": "Another", "types": ["workspaces"]},
        ("POST", "api/v1/announcements"): {"text": "New driver."},
        ("PATCH", "api/v1/announcements/<uuid:announcement_id>"): {"kind": "warning"},
        **{
            ("PUT", f"api/v1/{prefix}maintenance"): {"ends_at": f"{last}Z", "reason": "New switch."}
            for prefix in ("", "pools/<slug:slug>/")
        },
        ("POST", "api/v1/notice-channels"): {**CHANNEL, "kinds": ["workspaces"]},
        ("PATCH", "api/v1/notice-channels/<uuid:channel_id>"): {"enabled": True},
        ("PATCH", "api/v1/webhooks/<uuid:webhook_id>"): {"name": "Another"},
        ("POST", "teams/<slug:slug>/"): {"username": "erin", "role": "member"},
        ("POST", "teams/<slug:slug>/members/<str:username>/role/"): {"role": "owner"},
        ("POST", "workspaces/new/"): order,
        ("POST", "api/v1/workspaces"): order,
        **{
            ("POST", f"api/v1/workspaces/{act}"): {"workspaces": [str(values["<uuid:workspace_id>"])], **more}
            for act, more in (
                ("stop", {}),
                ("delete", {}),
                ("extend", {"hours": 2}),
                ("message", {"text": "x"}),
                ("preview", {"act": "stop"}),
                ("move", {}),
                ("move/cancel", {}),
            )
        },
        ("POST", "workspaces/act/"): {
            "act": "message",
            "text": "x",
            "confirm": "1",
            "workspace": [str(values["<uuid:workspace_id>"])],
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
        ("POST", "teams/<slug:slug>/service-accounts/<str:username>/trust-rules/check/"): {"claims": "{}"},
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
        **{("POST", f"api/v1/site/{action}"): {"yaml": "berth: 1"} for action in ("plan", "apply")},
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
        ("POST", "api/v1/gpu-checks"): {"device": str(values["<uuid:device_id>"])},
        ("POST", "api/v1/nodes/<uuid:node_id>/check-link"): {"with_node": str(values["<uuid:node_id>"])},
        ("POST", "api/v1/quota-requests/<uuid:request_id>/deny"): {"note": "No"},
    }
    return bodies.get((row.method, row.route), {})
