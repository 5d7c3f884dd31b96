"""The configuration files of the bundled Redis-compatible server and of Traefik, as text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from portal.embedded.environment import Instance

HEALTH_HOST = "health.berth.internal"
"""Traefik itself answers this host with 200: no other port is needed to see that it lives."""

TRAEFIK_ROOT_KEY = "traefik"
# Above every workspace's own router, which in turn stands above the two below.
PRIORITY_INTERNAL = 1_000_000
PRIORITY_WORKSPACE_FALLBACK = 2
PRIORITY_PORTAL = 1


def redis_conf(instance: Instance) -> str:
    """Loopback only, users from the ACL file, and an append-only file written every second.

    Nothing in Redis is needed to go on, but with its routes and sessions kept, open notebooks do not
    notice when it is restarted. Keys that expire anyway (sessions, replies) go first when memory is full.
    """
    return "\n".join(
        (
            "bind 127.0.0.1",
            f"port {instance.redis_port}",
            "protected-mode yes",
            "daemonize no",
            "databases 1",
            'logfile ""',
            "loglevel notice",
            f"dir {_quoted(instance.redis_dir)}",
            f"aclfile {_quoted(instance.run_dir / 'redis.acl')}",
            'save ""',
            "appendonly yes",
            "appendfsync everysec",
            "auto-aof-rewrite-min-size 16mb",
            "maxmemory 256mb",
            "maxmemory-policy volatile-ttl",
            "maxclients 4096",
            "tcp-keepalive 60",
            # Keyspace channel; strings, hashes and the like by name, expiry: what Traefik watches.
            "notify-keyspace-events K$gx",
            "",
        )
    )


def redis_acl(passwords: Mapping[str, str]) -> str:
    """Three users, each with what it needs; passwords only as their hashes."""

    def user(name: str, *rules: str) -> str:
        digest = hashlib.sha256(passwords[name].encode()).hexdigest()
        return " ".join(("user", name, "reset", "on", f"#{digest}", *rules))

    return "\n".join(
        (
            "user default reset off",
            user("control", "~*", "&*", "+@all"),
            # Celery's queues and fan-out, and answers to the portal. Not: routes, sessions, tokens.
            user(
                "node", "~berth:q:*", "~berth:reply:*", "&berth:q:*",
                # A subscription to a pattern must be allowed in just its words.
                "&berth:q:/0.celery.pidbox",
                "+@all", "-@admin", "-@dangerous", "+info",
            ),
            # Reads routes and learns of changes. Traefik also tries CONFIG SET, and does without.
            user(
                "traefik", f"%R~{TRAEFIK_ROOT_KEY}*", f"&__keyspace*:{TRAEFIK_ROOT_KEY}*",
                "+@read", "+@connection", "+subscribe", "+psubscribe", "+unsubscribe", "+punsubscribe",
                "-@dangerous", "+keys",
            ),
            "",
        )
    )  # fmt: skip


def traefik_static(instance: Instance, *, redis_password: str) -> str:
    """Traefik's own settings. JSON is YAML, so the file needs no library to write."""
    bind = f"[{instance.bind}]" if ":" in instance.bind else instance.bind
    entry_point: dict[str, Any] = {
        "address": f"{bind}:{instance.port}",
        # 0: an upload or a stream may take as long as it takes.
        "transport": {
            "respondingTimeouts": {"readTimeout": "0s", "writeTimeout": "0s", "idleTimeout": "180s"},
            "lifeCycle": {"graceTimeOut": "2s"},
        },
        "http": {
            # X_Forwarded_For is no way round the check of X-Forwarded-For.
            "aliasHeadersStrategy": "delete",
            # File names in notebooks' addresses hold any character.
            "encodedCharacters": {
                "allowEncodedSlash": True,
                "allowEncodedBackSlash": True,
                "allowEncodedSemicolon": True,
                "allowEncodedPercent": True,
                "allowEncodedQuestionMark": True,
                "allowEncodedHash": True,
            },
        },
    }
    if instance.trusted_proxies:
        entry_point["forwardedHeaders"] = {"trustedIPs": list(instance.trusted_proxies)}
    return _json(
        {
            "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
            "log": {"level": "WARN", "format": "json"},
            "ping": {"manualRouting": True},
            "entryPoints": {"web": entry_point},
            "providers": {
                # How long Traefik gathers changes before it applies them. It is on the way of every start.
                "providersThrottleDuration": "10ms",
                "file": {"filename": str(instance.run_dir / "traefik-routes.yml"), "watch": False},
                "redis": {
                    "endpoints": [f"127.0.0.1:{instance.redis_port}"],
                    "rootKey": TRAEFIK_ROOT_KEY,
                    "username": "traefik",
                    "password": redis_password,
                },
            },
        }
    )


def traefik_routes(*, domain: str, web_url: str, gateway_secret: str, entry_point: str = "web") -> str:
    """The portal's own routes, and the middleware that every workspace's route names."""
    # Hosts are matched in any case; the group of 32 hex digits is the workspace's UUID.
    workspace = f"HostRegexp(`(?i)^ws-[0-9a-f]{{32}}\\.{re.escape(domain)}$`)"

    def router(rule: str, service: str, priority: int, *middlewares: str) -> dict[str, Any]:
        made: dict[str, Any] = {
            "entryPoints": [entry_point],
            "rule": rule,
            "service": service,
            "priority": priority,
        }
        return made | ({"middlewares": list(middlewares)} if middlewares else {})

    return _json(
        {
            "http": {
                "routers": {
                    "health": router(f"Host(`{HEALTH_HOST}`)", "ping@internal", PRIORITY_INTERNAL),
                    # The gateway's own pages on a workspace's origin: tickets in, cookies out.
                    "workspace-gateway": router(
                        f"{workspace} && PathPrefix(`/.berth/`)", "web", PRIORITY_INTERNAL
                    ),
                    # A workspace without a route of its own is not running: the portal says so.
                    "workspace-state": router(workspace, "web", PRIORITY_WORKSPACE_FALLBACK),
                    # Agents and the forward-auth question come by loopback, never through the front door.
                    "portal": router(
                        "!PathPrefix(`/gateway/`) && !PathPrefix(`/agent/`)",
                        "web",
                        PRIORITY_PORTAL,
                        "portal-compress",
                    ),
                },
                "middlewares": {
                    "ws-auth": {
                        "forwardAuth": {
                            "address": f"{web_url}/gateway/{gateway_secret}/auth",
                            "trustForwardHeader": False,
                            # Replaced, so that the portal's token and the gateway's cookie end here.
                            "authResponseHeaders": ["Authorization", "Cookie"],
                        }
                    },
                    "portal-compress": {"compress": {"excludedContentTypes": ["text/event-stream"]}},
                },
                "services": {
                    "web": {"loadBalancer": {"servers": [{"url": web_url}], "passHostHeader": True}}
                },
            }
        }
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _quoted(path: object) -> str:
    """A path as Redis's configuration reads it: quoted, as it may hold spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
