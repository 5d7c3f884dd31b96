"""Checks the ports of the services, and holds them until the services start.

Imports only the standard library, because the portal's environment may not be installed yet.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from portal.embedded.environment import Instance
from provisioning.service import processes
from provisioning.service.console import Problem
from provisioning.service.environ import UP


def check(instance: Instance) -> None:
    """Raise `Problem` for a port that is not free now."""
    for name, address, port in _required_ports(instance):
        try:
            free = processes.port_is_free(address, port)
        except PermissionError as error:
            raise Problem(
                f"This user cannot listen on port {port} ({name}).",
                "Use a port above 1023: BERTH_PORT=8000",
            ) from error
        if not free:
            raise Problem(
                f"Port {port} ({name}) is used by {processes.holder_of(port)}.",
                f"Stop that program, or choose other ports: BERTH_PORT={_suggestion(instance.port)} {UP}",
            )


@contextlib.contextmanager
def hold_ports(instance: Instance) -> Iterator[None]:
    """Hold the ports during preparations, which can take minutes. Raises `Problem` like `check`.

    The ports are bound without listening, so the kernel does not assign them to outgoing connections, and no
    request waits in an unread queue. Another server can still take a port, so check again before the services
    start.
    """
    check(instance)
    with contextlib.ExitStack() as holders:
        for _, address, port in _required_ports(instance):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            holder = holders.enter_context(socket.socket(family, socket.SOCK_STREAM))
            # The services set this option too, so closing connections of an earlier run do not conflict.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                holder.bind((address, port))
        yield


def _required_ports(instance: Instance) -> tuple[tuple[str, str, int], ...]:
    """Return the setting, address and number of each port."""
    nodes = (
        ("BERTH_NODES_PORT", instance.nodes_bind, instance.nodes_port),
        ("BERTH_NODES_PORT and one", instance.nodes_bind, instance.redis_door_port),
    )
    return (
        ("BERTH_PORT", instance.bind, instance.port),
        ("BERTH_WEB_PORT", "127.0.0.1", instance.web_port),
        ("BERTH_REDIS_PORT", "127.0.0.1", instance.redis_port),
        ("BERTH_GATEWAY_PORT", "127.0.0.1", instance.gateway_port),
        *(nodes if instance.nodes_address else ()),
    )


def _suggestion(port: int) -> int:
    for candidate in range(port + 100, 65000, 100):
        try:
            if all(processes.port_is_free("127.0.0.1", candidate + step) for step in (0, 1, 2, 5)):
                return candidate
        except PermissionError:
            continue
    return 18000
