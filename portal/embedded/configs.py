"""The configuration files of the bundled Redis-compatible server and of Traefik, as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portal.embedded import authority, traefik
from portal.embedded.environment import Instance
from portal.machines import door as nodes_door
from portal.machines import redis_rules
from provisioning import signing
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.node.gateway import Certificates, caddy_config
from provisioning.service.console import Problem
from provisioning.service.files import write_file

YEAR_S = 31_536_000
TRANSPORT_SECURITY = "transport-security"
"""Middleware of the entry point: over https every answer, a workspace's too, has browsers keep to it."""

HEALTH_HOST = "health.berth.internal"
"""Traefik itself answers this host with 200: no other port is needed to see that it lives."""


def write(instance: Instance, secrets: Mapping[str, str]) -> None:
    """Write every file under `run` and `keys`, for this user only. Raises `OSError` or `Problem`."""
    run = instance.run_dir
    issued = authority.ensure(run / "tls")
    write_public_keys(instance, secrets)
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
    if instance.nodes_address:
        door = nodes_door.caddy_config(
            listen=instance.nodes_listen[0],
            authority=issued.door.authority,
            certificate=issued.door.certificate,
            key=issued.door.key,
            web_url=instance.web_url,
            gateway_secret=secrets["gateway_secret"],
            storage=run / ".nodes-door",
        )
        write_file(run / "nodes-door.json", door)
    write_file(run / "redis.conf", redis_conf(instance))
    node = RedisNode(instance.node_name, secrets["redis_node"], engine=True)
    write_file(run / "redis.acl", redis_acl(secrets["redis_control"], [node]))
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


def write_public_keys(instance: Instance, secrets: Mapping[str, str]) -> None:
    """Write the keys by which control plane and nodes believe each other. Raises `OSError` or `Problem`.

    Keys of other nodes in the folder stay.
    """
    nodes = instance.keys_dir / "nodes"
    nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        own, node = (signing.public_text(secrets[name]) for name in ("control_key", "node_key"))
    except ValueError as error:
        raise Problem(f"BERTH_CONTROL_KEY or BERTH_NODE_KEY: {error}.", "Set it anew.") from error
    write_file(instance.keys_dir / "control.pub", own + "\n")
    write_file(nodes / f"{instance.node_name}.pub", node + "\n")


@dataclass(frozen=True, slots=True)
class RedisNode:
    """A node as a user of Redis. With `engine` it works for the pools that are on no node."""

    name: str
    password: str
    engine: bool = False


def redis_acl(control_password: str, nodes: Sequence[RedisNode]) -> str:
    """The users: the control plane, and one for each node with what it needs; passwords only as their hashes.

    What a node may is in `portal.machines.redis_rules`. Machines that have joined are added while it runs.
    """

    def digest(password: str) -> str:
        return hashlib.sha256(password.encode()).hexdigest()

    def of(node: RedisNode) -> str:
        rules = redis_rules.rules(node.name, [digest(node.password)], engine=node.engine)
        return " ".join(("user", redis_rules.user_of(node.name), *rules))

    return "\n".join(
        (
            "user default reset off",
            f"user control reset on #{digest(control_password)} ~* &* +@all",
            *map(of, nodes),
            "",
        )
    )


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
