"""Hands Traefik its routes: the endpoint of its HTTP provider, answered as soon as they change.

Traefik asks again a moment after each answer. The answer is held back until the routes have another
revision than the one last sent on the same connection, so that a change travels at once and an idle
portal costs one request in two seconds. A new connection may be a new Traefik: it is answered at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from portal.workspaces.gateway import routes
from portal.workspaces.gateway.routes import Route, Snapshot

MIDDLEWARES = ("ws-strip@file", "ws-auth@file")
NODE_TRANSPORT = "nodes@file"
# Traefik does not break off a poll when it has to end: this is how long that may take it.
HOLD_S = 2.0
_RETRY_S = 0.25
# A message may be lost with its connection: the revision is looked at again after this.
_RECHECK_S = 1.0
_MAX_CLIENTS = 64

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
log = logging.getLogger(__name__)


def document(found: tuple[Route, ...]) -> bytes:
    """Traefik's dynamic configuration for these routes: each with its guard, or not at all.

    Their priority is the length of the rule, as Traefik does by itself.
    """
    routers = {
        route.external_name: {
            "rule": f"Host(`{route.host}`)",
            "service": route.external_name,
            "middlewares": list(MIDDLEWARES),
        }
        for route in found
    }
    services: dict[str, Any] = {
        route.external_name: {
            "loadBalancer": {
                "servers": [{"url": route.endpoint}],
                **({"serversTransport": NODE_TRANSPORT} if route.by_node else {}),
            }
        }
        for route in found
    }
    # Traefik ignores a configuration that is empty: without this the last route would never go.
    services["ws-none"] = {"loadBalancer": {"servers": [{"url": "http://127.0.0.1:9"}]}}
    http: dict[str, Any] = {"services": services}
    if routers:
        # Nor does it take an empty mapping.
        http["routers"] = routers
    return json.dumps({"http": http}).encode()


class RoutesFeed:
    """Answers the polls of any number of Traefiks. `redis` is on the routes' database."""

    def __init__(self, redis: Redis, *, hold_s: float = HOLD_S) -> None:
        self._redis = redis
        self._hold_s = hold_s
        self._sent: OrderedDict[Any, str] = OrderedDict()
        self._last: bytes | None = None

    async def answer(self, client: Any, receive: Receive) -> bytes | None:
        """The document, once it is news to `client` or the time to hold is over.

        None when Redis has not answered since this process began, or the client has gone.
        """
        gone = asyncio.ensure_future(_disconnected(receive))
        news = asyncio.ensure_future(self._news(client))
        try:
            await asyncio.wait({gone, news}, timeout=self._hold_s, return_when=asyncio.FIRST_COMPLETED)
            if news.done():
                found = news.result()
                self._sent[client] = found.revision
                self._sent.move_to_end(client)
                while len(self._sent) > _MAX_CLIENTS:
                    self._sent.popitem(last=False)
                self._last = await asyncio.to_thread(document, found.routes)
            elif gone.done():
                return None
            return self._last
        finally:
            gone.cancel()
            news.cancel()
            await asyncio.gather(gone, news, return_exceptions=True)

    async def _news(self, client: Any) -> Snapshot:
        """The first snapshot that `client` has not got. Waits for Redis where it is away.

        A store that has lost its data says nothing until the portal has filled it again: what is
        routed stays routed.
        """
        while True:
            try:
                async with self._redis.pubsub() as pubsub:
                    await pubsub.subscribe(routes.CHANGED_CHANNEL)
                    while True:
                        found = await self._unseen(client)
                        if found is not None:
                            return found
                        await pubsub.get_message(timeout=_RECHECK_S)
            except (RedisError, OSError) as error:
                log.warning("routes not readable: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)

    async def _unseen(self, client: Any) -> Snapshot | None:
        sent = self._sent.get(client)
        revision = await self._redis.get(routes.REVISION_KEY)
        text = revision.decode() if isinstance(revision, bytes) else revision or ""
        if sent is not None and text in ("", sent):
            return None
        return await routes.snapshot(self._redis)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
