"""The configuration files of the bundled Redis-compatible server and of Traefik, as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from portal.embedded import authority, traefik
from portal.embedded.environment import Instance, write_file
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.node.gateway import Certificates, caddy_config

YEAR_S = 31_536_000
TRANSPORT_SECURITY = "transport-security"
"""Middleware of the entry point: over https every answer, a workspace's too, has browsers keep to it."""

HEALTH_HOST = "health.berth.internal"
"""Traefik itself answers this host with 200: no other port is needed to see that it lives."""


def write(instance: Instance, secrets: Mapping[str, str]) -> None:
    """Write every file under `run`, for this user only. Raises `OSError`."""
    run = instance.run_dir
    issued = authority.ensure(run / "tls")
    passwords = {user: secrets[f"redis_{user}"] for user in ("control", "node")}
    routes = traefik_routes(
        domain=instance.domain,
        web_url=instance.web_url,
        gateway_url=instance.gateway_url,
        outage_url=instance.outage_url,
        gateway_secret=secrets["gateway_secret"],
        certificates=issued.front,
    )
    for folder in (instance.local_dir, (instance.local_dir / PORTAL_SOCKET).parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    gateway = caddy_config(
        listen=f"127.0.0.1:{instance.node_gateway_port}",
        certificates=issued.node,
        portal_url=instance.agent_url,
        storage=instance.local_dir / ".caddy",
    )
    write_file(run / "node-gateway.json", gateway)
    write_file(run / "redis.conf", redis_conf(instance))
    write_file(run / "redis.acl", redis_acl(passwords))
    write_file(run / "traefik.yml", traefik_static(instance, gateway_secret=secrets["gateway_secret"]))
    write_file(run / "traefik-routes.yml", routes)


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
            # It would write its title over the variables by which a later start recognises it.
            "set-proc-title no",
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
            "",
        )
    )


def redis_acl(passwords: Mapping[str, str]) -> str:
    """Two users, each with what it needs; passwords only as their hashes."""

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
            "",
        )
    )  # fmt: skip


def traefik_static(instance: Instance, *, gateway_secret: str) -> str:
    """Traefik's own settings: the gateway's, and what this instance adds.

    JSON is YAML, so the file needs no library to write.
    """
    bind = f"[{instance.bind}]" if ":" in instance.bind else instance.bind
    config = traefik.static_config(
        listen=f"{bind}:{instance.port}",
        gateway_url=instance.gateway_url,
        secret=gateway_secret,
        dynamic_file=str(instance.run_dir / "traefik-routes.yml"),
        read_timeout_s=instance.read_timeout_s,
    )
    config["log"] = {"level": "WARN", "format": "json"}
    config["ping"] = {"manualRouting": True}
    config["providers"]["file"]["watch"] = False
    web = config["entryPoints"]["web"]
    web["http"] |= {
        # X_Forwarded_For is no way round the check of X-Forwarded-For.
        "aliasHeadersStrategy": "delete",
        # File names in notebooks' addresses hold any character.
        "encodedCharacters": {
            f"allowEncoded{name}": True
            for name in ("Slash", "BackSlash", "Semicolon", "Percent", "QuestionMark", "Hash")
        },
    }
    if instance.public_url.startswith("https://"):
        web["http"]["middlewares"] = [f"{TRANSPORT_SECURITY}@file"]
    if instance.trusted_proxies:
        web["forwardedHeaders"]["trustedIPs"] = list(instance.trusted_proxies)
    return _json(config)


def traefik_routes(
    *,
    domain: str,
    web_url: str,
    gateway_url: str,
    outage_url: str,
    gateway_secret: str,
    certificates: Certificates,
) -> str:
    """The portal's routes: the gateway's, an answer of Traefik's own, and a smaller front door.

    `outage_url` answers where web or the gateway does not (`portal.embedded.outage`).
    """
    config = traefik.dynamic_config(
        web_url=web_url,
        gateway_url=gateway_url,
        domain=domain,
        secret=gateway_secret,
        certificates=certificates,
    )
    routers, middlewares = config["http"]["routers"], config["http"]["middlewares"]
    routers["health"] = {
        "rule": f"Host(`{HEALTH_HOST}`)",
        "priority": traefik.GATEWAY_PRIORITY,
        "service": "ping@internal",
    }
    for name in ("ws-gateway", "ws-fallback", "portal-streams", "portal-writes", "portal"):
        routers[name]["middlewares"].insert(0, "portal-outage")
    for name in ("portal-writes", "portal"):
        routers[name]["middlewares"].insert(1, "portal-compress")
    config["http"]["services"]["outage"] = {"loadBalancer": {"servers": [{"url": outage_url}]}}
    # The statuses of Traefik itself; the portal's own 503 has a page already.
    middlewares["portal-outage"] = {"errors": {"status": ["502", "504"], "service": "outage", "query": "/"}}
    middlewares[TRANSPORT_SECURITY] = {
        # TLS ends in front of Traefik, which would otherwise leave the header out.
        "headers": {"stsSeconds": YEAR_S, "stsIncludeSubdomains": True, "forceSTSHeader": True}
    }
    middlewares["portal-compress"] = {"compress": {"excludedContentTypes": ["text/event-stream"]}}
    return _json(config)


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _quoted(path: object) -> str:
    """A path as Redis's configuration reads it: quoted, as it may hold spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
