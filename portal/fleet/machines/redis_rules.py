"""ACL rules of nodes in Redis. Plain Python, because the launcher of Redis writes them, too."""

from __future__ import annotations

from collections.abc import Sequence

from provisioning.service.environ import NODE_NAME

# Keys in which kombu stores the queues of an exchange.
_BINDINGS = ("_kombu.binding.", "_kombu.binding_permanent.")
# Most commands are limited by keys. Disabled are commands without keys: administration, foreign scripts,
# channels, and everything that lists keys.
_NODE_COMMANDS = (
    "+@all", "-@admin", "-@dangerous", "-@scripting", "-@pubsub", "-scan", "-randomkey", "-dbsize", "-client",
    "+client|setinfo", "+client|setname", "+info", "+evalsha", "+script|load",
)  # fmt: skip


def user_of(node_name: str) -> str:
    """Return the name of a node's Redis user."""
    return f"node-{node_name}"


def rules(node_name: str, digests: Sequence[str], *, engine: bool = False) -> tuple[str, ...]:
    """Return the ACL rules of a node's user, starting with `reset`. `digests` are SHA-256 of its passwords.

    A node may access its own queue, its replies and its unfinished messages, and append to the control
    plane's queue. It has no access to routes, sessions, tokens or other nodes. With `engine`, it also works
    for pools of an engine. Raises `ValueError` for an invalid node name.
    """
    if not NODE_NAME.fullmatch(node_name):
        raise ValueError(f"not a node's name: {node_name!r}")
    queues = [f"node.{node_name}", *(["engine"] if engine else [])]
    return (
        "reset", "on", *(f"#{digest}" for digest in digests),
        *(f"~berth:q:{prefix}{queue}" for queue in queues for prefix in ("", *_BINDINGS)),
        *(f"~berth:reply:{queue}:*" for queue in queues),
        f"~berth:q:node.{node_name}:*",
        *_NODE_COMMANDS,
        "(~berth:q:control +lpush +llen)",
        *(f"(~berth:q:{prefix}control +sadd)" for prefix in _BINDINGS),
        "(~berth:q:pulse +hset +hdel +hget +hgetall)",
        "(~berth:q:samples +hset +expire)",
    )  # fmt: skip
