"""ACL rules of nodes in Redis. Plain Python, because the launcher of Redis uses them too."""

from __future__ import annotations

from collections.abc import Sequence

from provisioning import node_users
from provisioning.service.environ import NODE_NAME

# Exactly the commands that kombu and the node's code use. No scripts, which could block Redis or fill its
# memory.
_CONNECTION = (
    "+auth", "+hello", "+ping", "+select", "+time", "+client|setinfo", "+client|setname",
    "+multi", "+exec", "+discard", "+unwatch",
)  # fmt: skip
_QUEUES = ("+brpop", "+llen", "+lpush", "+rpush")
_UNACKED = ("+watch", "+hset", "+hget", "+hdel", "+zadd", "+zrange", "+zrem", "+set")


def user_of(node_name: str) -> str:
    """Return the name of a node's Redis user."""
    return node_users.user_of(node_name)


def keys_of(node_name: str) -> tuple[str, ...]:
    """Return the keys that only this node and the control plane use, without replies."""
    own = f"berth:q:node.{node_name}"
    unacked = (f"{own}:{name}" for name in ("unacked", "unacked_index", "unacked_mutex"))
    return (own, *unacked, f"{own}:heartbeat", f"{own}:samples", f"berth:q:control.node.{node_name}")


def rules(node_name: str, digests: Sequence[str], *, engine: bool = False) -> tuple[str, ...]:
    """Return the ACL rules of a node's user, starting with `reset`. `digests` are SHA-256 of its passwords.

    A node may access its own queue, replies, unfinished messages, heartbeat and samples, and append to its
    outbox. It has no access to routes, sessions, tokens or other nodes. With `engine`, it also works for
    pools of an engine. Raises `ValueError` for an invalid node name.
    """
    if not NODE_NAME.fullmatch(node_name):
        raise ValueError(f"not a node's name: {node_name!r}")
    own, unacked, index, mutex, heartbeat, samples, outbox = keys_of(node_name)
    queues = [own, *(["berth:q:engine"] if engine else [])]
    work = [f"~{key}" for key in (*queues, unacked, index, mutex)]
    replies = [f"~berth:reply:{queue.removeprefix('berth:q:')}:*" for queue in queues]
    return (
        "reset", "on", *(f"#{digest}" for digest in digests), *_CONNECTION,
        f"({' '.join((*work, *_QUEUES, *_UNACKED))})",
        f"({' '.join(replies)} +rpush +expire)",
        f"(~{outbox} +lpush +llen)",
        f"(~{heartbeat} +hset +hget +hdel)",
        f"(~{samples} +hset +expire)",
    )  # fmt: skip
