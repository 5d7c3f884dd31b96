"""Joins the gateway's ASGI application, which knows no Django, with the portal's database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import redis.asyncio
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from starlette.types import ASGIApp, Receive, Scope, Send

from portal.workspaces.gateway import publishing
from portal.workspaces.gateway.app import GatewaySettings, build_app

P = ParamSpec("P")
R = TypeVar("R")


def _with_fresh_connection(ask: Callable[P, R]) -> Callable[P, R]:
    """`ask`, on a connection that is still good: no request of Django's has seen to that."""

    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        return ask(*args, **kwargs)

    return asked


def gateway_application(django_application: Any) -> ASGIApp:
    """The gateway for workspaces' hosts and forward-auth, Django for all else."""
    if not settings.BERTH_GATEWAY_SECRET:
        raise RuntimeError("BERTH_GATEWAY_SECRET is not set: run `make up`, which writes one.")
    store = redis.asyncio.Redis.from_url(
        settings.BERTH_REDIS_URL, socket_timeout=5, socket_connect_timeout=1, health_check_interval=30
    )
    app = build_app(
        GatewaySettings(
            secret=settings.BERTH_GATEWAY_SECRET,
            domain=settings.BERTH_DOMAIN,
            public_url=settings.BERTH_PUBLIC_URL,
            cookie_secure=settings.HTTPS,
        ),
        store,
        sync_to_async(_with_fresh_connection(publishing.resolve)),
        sync_to_async(_with_fresh_connection(publishing.authorize_bearer)),
        sync_to_async(_with_fresh_connection(publishing.record_entry)),
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if app.handles(scope):
            await app(scope, receive, send)
        else:
            await django_application(scope, receive, send)

    return application
