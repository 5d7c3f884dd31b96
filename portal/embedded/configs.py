"""Configuration files of the bundled Redis-compatible server and of the front door."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portal.embedded import authority, proxy
from portal.embedded.environment import Instance
from portal.fleet.machines import door as nodes_door
from portal.fleet.machines import redis_rules
from provisioning import signing
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.node_gateway import Certificates
from provisioning.service.console import Problem
from provisioning.service.files import write_file

FRONT_STORAGE = ".caddy"
FRONT_SOCKET = f"{FRONT_STORAGE}/front-door.sock"
"""Relative to the working folder of the front door, like its folder for Caddy itself."""
NODES_DOOR_SOCKET = "nodes-door.sock"
"""Relative to the working folder of the door's Caddy."""


def write(instance: Instance, secrets: Mapping[str, str]) -> None:
    """Write every file under `run` and `keys`, readable only by this user. Raises `OSError` or `Problem`."""
    run = instance.run_dir
    issued = authority.ensure(instance.tls_dir)
    front, own = issued.front, issued.door
    if instance.tls_apart:
        # May contain the authority's key if `BERTH_TLS_DIR` was set later. Redis and the front door read this
        # folder.
        shutil.rmtree(run / "tls", ignore_errors=True)
        front = authority.copy_certificates(front, run / "front-door")
        own = authority.copy_certificates(own, instance.doors_dir / "tls")
    write_public_keys(instance, secrets)
    local = instance.local_dir
    for folder in (local, (local / PORTAL_SOCKET).parent, local / FRONT_STORAGE):
        folder.mkdir(mode=0o700, exist_ok=True)
    if instance.nodes_address:
        for folder in (instance.doors_dir, instance.door_socket_dir):
            folder.mkdir(mode=0o700, exist_ok=True)
        door = nodes_door.caddy_config(
            listen=NODES_DOOR_SOCKET,
            authority=own.authority,
            certificate=own.certificate,
            key=own.key,
            web_url=instance.web_url,
            gateway_secret=secrets["gateway_secret"],
            storage=instance.door_socket_dir / ".nodes-door",
            front=front_address(instance),
            domain=instance.domain,
        )
        write_file(instance.doors_dir / "nodes-door.json", door)
    write_file(run / "redis.conf", redis_conf(instance))
    node = RedisNode(instance.node_name, secrets["redis_node"], engine=True)
    write_file(run / "redis.acl", redis_acl(secrets["redis_control"], [node]))
    door = front_door(instance, gateway_secret=secrets["gateway_secret"], certificates=front)
    write_file(run / "front-door.json", door)


def redis_conf(instance: Instance) -> str:
    """Return Redis's configuration: loopback only, ACL file, append-only file synced every second.

    Berth recovers without Redis's data, but open notebooks survive a restart of Redis if views and sessions
    are kept. When memory is full, Redis refuses writes and evicts nothing, so that sessions survive. Client
    buffers are limited, because they count as memory.
    """
    return "\n".join(
        (
            "bind 127.0.0.1",
            f"port {instance.redis_port}",
            "protected-mode yes",
            "daemonize no",
            # A process title would overwrite the environment variables with which a later start recognises
            # the process.
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
            "maxmemory-policy noeviction",
            "maxmemory-clients 64mb",
            "client-query-buffer-limit 16mb",
            "proto-max-bulk-len 8mb",
            "maxclients 4096",
            "tcp-keepalive 60",
            "",
        )
    )


def write_public_keys(instance: Instance, secrets: Mapping[str, str]) -> None:
    """Write the public keys of the control plane and of this node. Raises `OSError` or `Problem`.

    Keeps the keys of other nodes in the folder.
    """
    nodes = instance.keys_dir / "nodes"
    nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        own, node = (signing.public_text(secrets[name]) for name in ("control_key", "node_key"))
    except ValueError as error:
        raise Problem(f"BERTH_CONTROL_KEY or BERTH_NODE_KEY: {error}.", "Set a valid key.") from error
    write_file(instance.keys_dir / "control.pub", own + "\n")
    write_file(nodes / f"{instance.node_name}.pub", node + "\n")


@dataclass(frozen=True, slots=True)
class RedisNode:
    """A node's Redis user. With `engine`, the node works for pools without nodes."""

    name: str
    password: str
    engine: bool = False


def redis_acl(control_password: str, nodes: Sequence[RedisNode]) -> str:
    """Return Redis's ACL: the control plane, and one restricted user per node. Passwords are hashed.

    `portal.fleet.machines.redis_rules` defines the rights of a node. Joined machines are added at run time.
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


def front_door(instance: Instance, *, gateway_secret: str, certificates: Certificates) -> str:
    """Return the front door's configuration; `certificates` are for connections to nodes' gateways."""
    return proxy.config(
        listen=f"unix/{FRONT_SOCKET}|0600",
        places=proxy.Upstreams(
            web=f"127.0.0.1:{instance.web_port}",
            gateway=f"127.0.0.1:{instance.gateway_port}",
            agents_url=instance.agent_url,
        ),
        domain=instance.domain,
        secret=gateway_secret,
        certificates=certificates,
        storage=instance.local_dir / FRONT_STORAGE,
        https=instance.public_url.startswith("https://"),
        trusted_proxies=instance.trusted_proxies,
        read_timeout_s=instance.read_timeout_s,
        passes=instance.passes_dir,
    )


def front_door_argv(instance: Instance, caddy: Path) -> tuple[str, ...]:
    """Return the command line of the front door's guard, which runs Caddy."""
    bind = f"[{instance.bind}]" if ":" in instance.bind else instance.bind
    return (
        sys.executable, "-m", "portal.embedded.front_guard",
        "--listen", f"{bind}:{instance.port}",
        # The folder of the workspaces' sockets, so that socket paths are short.
        "--folder", str(instance.local_dir), "--to", FRONT_SOCKET,
        "--", str(caddy), "run", "--config", str(instance.run_dir / "front-door.json"),
    )  # fmt: skip


def front_address(instance: Instance) -> str:
    """Return `host:port` of the front door as seen from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(instance.bind, instance.bind)  # noqa: S104
    return f"[{host}]:{instance.port}" if ":" in host else f"{host}:{instance.port}"


def _quoted(path: object) -> str:
    """Quote a path for Redis's configuration."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
