"""Processes of an embedded instance: command lines, environments, dependencies and probes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from portal.embedded import front_guard
from portal.embedded.account import Account
from portal.embedded.configs import NODES_DOOR_SOCKET, front_address, front_door_argv
from portal.embedded.environment import Instance
from portal.embedded.proxy import HEALTH_HOST
from provisioning.service import probes, user_scope
from provisioning.service.environ import ROOT, bare_environ
from provisioning.service.program import Program, celery_argv, worker_argv

KEEP_ALIVE_S = 120
FRONT_DOOR_MEMORY = {"GOMEMLIMIT": "128MiB"}
"""Soft memory limit. Near this limit, Go collects garbage more often and returns memory to the system."""
GATEWAY_PROTOCOL = "portal.embedded.gateway_protocol:DeadlineProtocol"
HEARTBEAT_KEY, NODE_HEARTBEAT_KEY = "berth:q:heartbeat", "berth:q:node.{name}:heartbeat"
"""Like `key_of` in provisioning.heartbeat, which is not imported here because it imports Celery."""


def programs(
    instance: Instance,
    environ: Mapping[str, str],
    *,
    secrets: Mapping[str, str],
    redis_server: Path,
    caddy: Path,
    repair_redis: Callable[[], str] | None = None,
    account: Account | None = None,
) -> tuple[Program, ...]:
    """Return the instance's processes in start order, confined to `account` if there is one."""
    control_url = instance.redis_url("control", secrets["redis_control"])
    portal = {
        **instance.portal_environ(environ),
        "BERTH_FRONT_DOOR_URL": f"http://{front_address(instance)}",
        "BERTH_GATEWAY_URL": instance.gateway_url,
        "BERTH_PASSES_DIR": str(instance.passes_dir or ""),
        "BERTH_PASSES_SHARED": "1" if account is not None else "",
    }
    bare = bare_environ(environ)
    # beat unpickles its own file, so root and the account must never read each other's file.
    beat_dir = account.folder if account is not None else instance.run_dir
    node_environ = {
        **instance.node_environ(environ, node_password=secrets["redis_node"], node_key=secrets["node_key"]),
        "BERTH_NODE_FRONT_DOOR_URL": f"http://{front_address(instance)}",
    }

    def heartbeat(name: str, key: str = HEARTBEAT_KEY) -> Callable[[float], bool]:
        return probes.heartbeat_since(control_url, key, name)

    def worker(app: str, name: str, queues: str) -> tuple[str, ...]:
        return worker_argv(app, f"{name}@{instance.node_name}", queues)

    result = (
        Program(
            name="redis",
            argv=(str(redis_server), str(instance.run_dir / "redis.conf")),
            environ=bare,
            answers=probes.redis_answers(control_url),
            port=instance.redis_port,
            repair=repair_redis,
        ),
        Program(
            name="web",
            argv=(
                sys.executable, "-m", "gunicorn", "--chdir", str(ROOT),
                "-c", "python:portal.embedded.web_server", "portal.wsgi:application",
            ),
            environ=portal,
            answers=lambda _: probes.http_status(instance.web_port, "/healthz/live") == 200,
            after=("redis",),
            port=instance.web_port,
        ),
        Program(
            name="gateway",
            argv=(
                sys.executable, "-m", "uvicorn", "portal.asgi:application", "--app-dir", str(ROOT),
                "--host", "127.0.0.1", "--port", str(instance.gateway_port), "--no-access-log",
                # The application itself determines the client's address (`portal.common.front_door`).
                "--no-server-header", "--no-proxy-headers", "--http", GATEWAY_PROTOCOL,
                # Longer than the front door keeps idle connections, so that it never sends a request to a
                # closing connection.
                "--timeout-keep-alive", str(KEEP_ALIVE_S),
                "--lifespan", "off", "--timeout-graceful-shutdown", "3", "--log-level", "warning",
            ),
            environ=portal,
            answers=lambda _: probes.http_status(instance.gateway_port, "/healthz/live") == 200,
            after=("redis",),
            port=instance.gateway_port,
        ),
        Program(
            name="front-door",
            argv=front_door_argv(instance, caddy),
            environ={**bare, **FRONT_DOOR_MEMORY, **_set(environ, front_guard.VARIABLES)},
            answers=lambda _: _front_door_answers(instance),
            # The front door starts after both, so that users never see a portal that does not answer yet.
            after=("web", "gateway"),
            port=instance.port,
        ),
        Program(
            name="control",
            argv=worker("portal.celery", "control", "control"),
            environ=portal,
            answers=heartbeat(f"control@{instance.node_name}"),
            after=("redis",),
        ),
        Program(
            name="node",
            argv=(
                *user_scope.prefix(node_environ),
                *worker("provisioning.node.worker", "node", f"node.{instance.node_name},engine"),
            ),
            environ=node_environ,
            answers=heartbeat(
                f"node@{instance.node_name}", NODE_HEARTBEAT_KEY.format(name=instance.node_name)
            ),
            # Workspaces set the modes of their own files.
            umask=0o022,
            after=("redis",),
        ),
        Program(
            name="beat",
            argv=celery_argv(
                "portal.embedded.clock", "beat", "-S", "portal.embedded.beat:PulsingScheduler",
                "-s", str(beat_dir / "beat-schedule"), "--pidfile=", "-l", "WARNING",
            ),
            environ={**portal, "DJANGO_SETTINGS_MODULE": "portal.settings"},
            answers=heartbeat(f"beat@{instance.node_name}"),
            after=("redis", "control"),
        ),
        *(_doors(instance, bare, caddy) if instance.nodes_address else ()),
    )  # fmt: skip
    return result if account is None else tuple(map(account.confine, result))


def _doors(instance: Instance, bare: Mapping[str, str], caddy: Path) -> tuple[Program, ...]:
    """Return the programs through which other machines reach the portal and Redis."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(instance.nodes_bind, instance.nodes_bind)  # noqa: S104
    https, redis = instance.nodes_listen
    socket = instance.door_socket_dir / NODES_DOOR_SOCKET
    return (
        Program(
            name="nodes-door",
            argv=(str(caddy), "run", "--config", str(instance.doors_dir / "nodes-door.json")),
            environ=bare,
            answers=lambda _: socket.is_socket(),
            after=("web",),
            folder=instance.door_socket_dir,
        ),
        Program(
            name="nodes-guard",
            argv=(
                sys.executable, "-m", "portal.embedded.door_guard", "--listen", https, "--to", str(socket),
            ),
            environ={**bare, "PYTHONUNBUFFERED": "1"},
            answers=lambda _: probes.port_open(instance.nodes_port, address),
            after=("nodes-door",),
            port=instance.nodes_port,
        ),
        Program(
            name="redis-door",
            argv=(
                sys.executable, "-m", "portal.embedded.redis_door", "--listen", redis,
                "--to", str(instance.redis_port), "--tls", str(instance.tls_dir),
            ),
            environ={**bare, "PYTHONUNBUFFERED": "1"},
            answers=lambda _: probes.port_open(instance.redis_door_port, address),
            after=("redis",),
            port=instance.redis_door_port,
        ),
    )  # fmt: skip


def _set(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: environ[name] for name in names if environ.get(name)}


def _address(instance: Instance) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(instance.bind, instance.bind)  # noqa: S104


def _front_door_answers(instance: Instance) -> bool:
    return probes.http_status(instance.port, "/", host=HEALTH_HOST, address=_address(instance)) == 200
