from __future__ import annotations

import socket
from pathlib import Path

import pytest

from portal.embedded.environment import Instance


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on now; held together so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    port, web, redis, gateway = free_ports(4)
    return Instance.from_environ(
        {
            "BERTH_HOME": str(tmp_path / "home"),
            "BERTH_PORT": str(port),
            "BERTH_WEB_PORT": str(web),
            "BERTH_REDIS_PORT": str(redis),
            "BERTH_GATEWAY_PORT": str(gateway),
            "BERTH_NODE_NAME": "node-a",
        }
    )
