"""Connects the gateway's ASGI application, which does not use Django, to the portal's database."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit

import redis.asyncio
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connection
from starlette.types import ASGIApp, Receive, Scope, Send

from portal.common import front_door
from portal.common.serving import client_address
from portal.workspaces.gateway import publishing, summary
from portal.workspaces.gateway.app import GatewaySettings, build_app
from provisioning.service.environ import UP

_TOKEN = front_door.TOKEN_HEADER.lower().encode()
_PROXY = front_door.PROXY_HEADER.lower().encode()
_AUTH_PATH = "/gateway/%s/auth"
P = ParamSpec("P")
R = TypeVar("R")


KEPT_S = 60.0
"""Seconds for which the gateway's thread keeps a database connection."""


def _with_fresh_connection(ask: Callable[P, R]) -> Callable[P, R]:
    """Wrap `ask` to run on a usable database connection, as there is no Django request cycle here.

    All calls run in one persistent thread, so its connection can persist too, although
    `portal.settings.gateway` closes connections after each use. Opening a connection takes longer than most
    queries.
    """

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        if connection.connection is None:
            connection.ensure_connection()
            connection.close_at = time.monotonic() + KEPT_S
        return ask(*args, **kwargs)

    return wrapper


def gateway_application(
    django_application: Any,
    *,
    describe: Callable[[str], dict[str, Any] | None] = summary.summary_of,
    extend: Callable[[str, str], tuple[int, dict[str, Any]]] | None = None,
) -> ASGIApp:
    """Return an application for workspace hosts and forward-auth; Django serves other requests.

    `describe` and `extend` are those of `app.build_app`, as functions that use the database.
    """
    if not settings.BERTH_GATEWAY_SECRET:
        raise RuntimeError(f"BERTH_GATEWAY_SECRET is not set: run `{UP}`, which writes one.")
    store = redis.asyncio.Redis.from_url(
        settings.BERTH_REDIS_URL, socket_timeout=5, socket_connect_timeout=1, health_check_interval=30
    )
    app = build_app(
        GatewaySettings(
            secret=settings.BERTH_GATEWAY_SECRET,
            domain=settings.BERTH_DOMAIN,
            public_url=settings.BERTH_PUBLIC_URL,
            cookie_secure=settings.HTTPS,
            passes=Path(settings.BERTH_PASSES_DIR) if settings.BERTH_PASSES_DIR else None,
            passes_shared=os.environ.get("BERTH_PASSES_SHARED") == "1",
            front_door=_front_door(),
        ),
        store,
        sync_to_async(_with_fresh_connection(publishing.resolve)),
        sync_to_async(_with_fresh_connection(publishing.authorize_bearer)),
        sync_to_async(_with_fresh_connection(publishing.record_entry)),
        describe=sync_to_async(_with_fresh_connection(describe)),
        extend=None if extend is None else sync_to_async(_with_fresh_connection(extend)),
    )

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            _find_client(scope)
        if app.handles(scope):
            await app(scope, receive, send)
        else:
            await django_application(scope, receive, send)

    return application


def _front_door() -> tuple[str, int] | None:
    """Return the front door's host and port as seen from this process, or `None` if not configured."""
    parts = urlsplit(os.environ.get("BERTH_FRONT_DOOR_URL", ""))
    return (parts.hostname, parts.port or 80) if parts.hostname else None


def _find_client(scope: Scope) -> None:
    """Set the client's address in the scope, and remove the headers that only proxies may send."""
    headers_by_name: dict[bytes, str] = {}
    headers = []
    for name, value in scope["headers"]:
        if name in (_TOKEN, _PROXY):
            headers_by_name[name] = value.decode("latin-1")
        else:
            headers.append((name, value))
            if name == b"x-forwarded-for":
                before = headers_by_name.get(name)
                headers_by_name[name] = (
                    f"{before}, {value.decode('latin-1')}" if before else value.decode("latin-1")
                )
    scope["headers"] = headers
    token = headers_by_name.get(_TOKEN, "")
    asked_by_front_door = _AUTH_PATH % settings.BERTH_GATEWAY_SECRET
    if scope["path"] == asked_by_front_door:
        # Forward-auth names the client too, and is authenticated by its path.
        token = front_door.token_of(settings.BERTH_GATEWAY_SECRET)
    peer, port = scope.get("client") or ("", 0)
    address = client_address(
        peer,
        token=token,
        forwarded_for=headers_by_name.get(b"x-forwarded-for", ""),
        proxy_secret=headers_by_name.get(_PROXY, ""),
    )
    if address != peer:
        scope["client"] = (address, port)
