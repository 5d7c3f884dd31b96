from __future__ import annotations

from pathlib import Path

import pytest

from portal.embedded.environment import Instance
from tests.ports import consecutive_ports


def free_ports(number: int) -> list[int]:
    """Unused ports."""
    first = consecutive_ports(number)
    return [*range(first, first + number)]


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
