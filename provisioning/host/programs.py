"""The two services of a node: its worker and its gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from provisioning.celery_config import node_queue
from provisioning.endpoints import PORTAL_SOCKET
from provisioning.heartbeat import key_of
from provisioning.host import gateway_account
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import Membership
from provisioning.node_gateway import Certificates, caddy_config
from provisioning.service import probes, user_scope
from provisioning.service.console import Problem
from provisioning.service.door_account import DoorAccount
from provisioning.service.environ import bare_environ
from provisioning.service.files import write_file
from provisioning.service.program import Program, find_program, worker_argv

PROBE_EVERY_S = 1.0
"""Each probe of the worker's heartbeat is a TLS handshake with another machine."""


def find_caddy() -> Path:
    """Return the path of Caddy. Raises `Problem`."""
    path = find_program("caddy")
    if path is None:
        raise Problem(
            "The program “caddy”, the node's gateway, is missing.",
            "Run `make environment` in Berth's folder, then this command again.",
        )
    return path


def programs(
    folder: NodeFolder,
    membership: Membership,
    environ: Mapping[str, str],
    caddy: Path,
    account: DoorAccount | None = None,
) -> tuple[Program, ...]:
    """Write the files of both services and return the services. Raises `OSError`.

    `account`, if any, runs the gateway.
    """
    write_gateway(folder, membership)
    name = membership.name
    worker_environ = node_environ(folder, membership, environ)
    heartbeat = probes.heartbeat_since(membership.redis_url(folder), key_of(f"node@{name}"), f"node@{name}")
    gateway = Program(
        name="node-gateway",
        argv=(str(caddy), "run", "--config", str(folder.gateway_config)),
        environ=bare_environ(environ),
        answers=lambda _: probes.port_open(membership.gateway_port),
        port=membership.gateway_port,
        folder=folder.local,
    )
    if account is not None:
        needs = gateway_account.needs(folder, account, environ)
        gateway = account.confine(gateway, needs, ports=(membership.gateway_port,))
    return (
        gateway,
        Program(
            name="node",
            argv=(
                *user_scope.prefix(worker_environ),
                *worker_argv("provisioning.node.worker", f"node@{name}", node_queue(name)),
            ),
            environ=worker_environ,
            answers=_with_pacing(heartbeat),
            # Workspaces set the modes of their own files.
            umask=0o022,
        ),
    )


def node_environ(folder: NodeFolder, membership: Membership, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment: this node's settings, its keys, and its own Redis user.

    A node is multi-user unless its settings say otherwise.
    """
    return {
        **bare_environ(environ),
        "BERTH_MULTIUSER": "1",
        **{key: value for key, value in environ.items() if key.startswith("BERTH_NODE_")},
        **settings(folder),
        "BERTH_HOME": str(folder.home),
        "BERTH_NODE_NAME": membership.name,
        "BERTH_NODE_POOL": membership.answer.pool,
        "BERTH_NODE_REDIS_URL": membership.redis_url(folder),
        "BERTH_NODE_KEY": membership.signing_key,
        "BERTH_NODE_INSTANCE": membership.instance,
        "BERTH_NODE_MACHINE_ID": membership.machine_id,
        "BERTH_CONTROL_PUBLIC_KEY": membership.answer.control_key,
        "BERTH_NODE_PORTAL_URL": membership.answer.portal_url,
        "BERTH_NODE_AUTHORITY": str(folder.authority),
        "BERTH_NODE_CERTIFICATE": str(folder.certificate),
        "BERTH_NODE_CERTIFICATE_KEY": str(folder.key),
        "PYTHONUNBUFFERED": "1",
    }


def settings(folder: NodeFolder) -> dict[str, str]:
    """Return the variables in `node.env`; others than Berth's are ignored. Raises `Problem`."""
    try:
        lines = folder.settings.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{folder.settings} cannot be read ({error}).", "Correct or remove it.") from error
    pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
    return {
        name.strip(): value.strip().strip('"')
        for name, _, value in pairs
        if name.strip().startswith("BERTH_")
    }


def write_gateway(folder: NodeFolder, membership: Membership) -> None:
    """Write the gateway's configuration. Raises `OSError` or `ValueError`."""
    for path in (folder.local, (folder.local / PORTAL_SOCKET).parent):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = caddy_config(
        listen=f":{membership.gateway_port}",
        certificates=Certificates(folder.authority, folder.certificate, folder.key),
        portal_url=membership.answer.portal_url,
        storage=folder.local / ".caddy",
        elsewhere=True,
    )
    write_file(folder.gateway_config, config)


def _with_pacing(probe: Callable[[float], bool]) -> Callable[[float], bool]:
    """Return the probe limited to one call per `PROBE_EVERY_S`; earlier calls wait."""
    asked_at = float("-inf")

    def paced(started_at: float) -> bool:
        nonlocal asked_at
        time.sleep(max(0.0, asked_at + PROBE_EVERY_S - time.monotonic()))
        asked_at = time.monotonic()
        return probe(started_at)

    return paced
