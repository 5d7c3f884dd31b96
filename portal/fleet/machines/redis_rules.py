"""What a node may of Redis, as the rules of its user; plain Python, as what starts Redis writes them too."""

from __future__ import annotations

from collections.abc import Sequence

from provisioning.service.environ import NODE_NAME

# Where kombu notes which queues an exchange has.
_BINDINGS = ("_kombu.binding.", "_kombu.binding_permanent.")
# Keys bound what most commands reach. Off is what has no keys: upkeep, scripts but one's own, channels, and
# whatever shows names of keys.
_NODE_COMMANDS = (
    "+@all", "-@admin", "-@dangerous", "-@scripting", "-@pubsub", "-scan", "-randomkey", "-dbsize", "-client",
    "+client|setinfo", "+client|setname", "+info", "+evalsha", "+script|load",
)  # fmt: skip


def user_of(node_name: str) -> str:
    """The user of Redis that is a node's."""
    return f"node-{node_name}"


def rules(node_name: str, digests: Sequence[str], *, engine: bool = False) -> tuple[str, ...]:
    """The rules of a node's user, from `reset` on; `digests` are the SHA-256 of its passwords.

    A node has its own queue, its own answers to waiting requests, and what it has taken and not done yet. It
    adds to the control plane's queue and reads nothing there. Not: routes, sessions, tokens, other nodes.
    With `engine` it works for the pools that are on no node. Raises `ValueError` for what is no node's name.
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
