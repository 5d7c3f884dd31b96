"""Redis users of nodes. Redis itself keeps the list of nodes that may write there."""

from __future__ import annotations

from typing import Any

PREFIX = "node-"


def user_of(node_name: str) -> str:
    """Return the name of a node's Redis user."""
    return PREFIX + node_name


def names(client: Any) -> list[str]:
    """Return the names of nodes with a Redis user, sorted. Raises `redis.RedisError`."""
    users = (user.decode() if isinstance(user, bytes) else user for user in client.acl_users())
    return sorted(user.removeprefix(PREFIX) for user in users if user.startswith(PREFIX))
