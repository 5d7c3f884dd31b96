"""The fixtures of `gateway_support`, for every test in this folder."""

import pytest
from gateway_support import gateway, http, portal, redis, redis_async, redis_url, stack

from portal.workspaces.gateway import access, entries

__all__ = ["gateway", "http", "portal", "redis", "redis_async", "redis_url", "stack"]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long timeouts, so that a busy machine does not fail a reachable store."""
    for module in (access, entries):
        monkeypatch.setattr(module, "STORE_TIMEOUT_S", 20.0)
