"""Validates messages from node workers. Invalid messages are logged and dropped.

Only the node that was asked may answer. The sender is identified by its signature
(`provisioning.signed_celery`), never by the content.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from django.conf import settings

from portal.celery import app
from portal.fleet.inventory import node_commands, notices
from portal.fleet.inventory.models import Pool
from provisioning import messages
from provisioning.celery_config import ENGINE_QUEUE, node_queue
from provisioning.signed_celery import RefusedReport, sender
from provisioning.signing import CONTROL, MessageRefused, Refusal
from provisioning.types import Inventory

log = logging.getLogger(__name__)
T = TypeVar("T")


def received(data: Any, kind: type[T], *, of: str) -> T | None:
    """Return the typed value, or None if it is invalid. `of` names the sender for the log."""
    try:
        return messages.receive(data, kind)
    except ValueError as error:
        # The text may quote the message.
        text = str(error)[:300].encode("unicode_escape").decode()
        log.warning("ignored message from %s: %s", of[:120].encode("unicode_escape").decode(), text)
        return None


def is_from_asked_node(pool: Pool, node_name: str) -> bool:
    """Return whether the current message comes from this node, which was asked.

    For a pool of an engine, the sender must be a worker of the engine. Other messages are logged, and
    operators are notified.
    """
    if sender() in (_engine_queues() if not pool.runs_on_node else {node_queue(node_name)}):
        return True
    _refuse(f"speaks for {node_name or 'the engine'} of {pool.slug}")
    return False


def is_from_pool_node(pool: Pool, node_names: Iterable[str] | None = None) -> bool:
    """Return whether the message comes from a node of the pool and concerns only that node (`node_names`)."""
    own = [name for name in node_commands.nodes_to_ask(pool) if node_queue(name) == sender()]
    if not pool.runs_on_node:
        return is_from_asked_node(pool, "")
    if own and set(node_names or own) <= set(own):
        return True
    _refuse(f"speaks for nodes of {pool.slug}")
    return False


def is_from_node(node_name: str) -> bool:
    """Return whether the message comes from the node with this name, in any pool."""
    if node_queue(node_name) == sender():
        return True
    _refuse("speaks for another node")
    return False


def is_inventory_trusted(pool: Pool, seen: Inventory) -> bool:
    """Return whether the inventory is from a permitted sender. Nodes report only about themselves."""
    return is_from_pool_node(pool, [node.name for node in seen.nodes])


def queues_of_sender(queues: Iterable[str]) -> list[str]:
    """Return the `queues` that the sender may consume."""
    own = {sender()} | ({ENGINE_QUEUE} if sender() in _engine_queues() else set())
    return [queue for queue in queues if queue in own]


def refused(report: RefusedReport) -> None:
    """Handle a worker's report of dropped messages, and notify operators if necessary."""
    reporter, claimed, reason = sender(), _line(report.claimed), _line(report.reason)
    log.warning(
        "%s dropped %d messages from queue %s (%s). Last: %s, sender %s, %.0f s off",
        *(_line(reporter), report.count, _line(report.queue), reason),
        *(_line(report.task), claimed or "unknown", report.off_s),
    )
    if reason == Refusal.FUTURE:
        # Sender or receiver may be the node: if its clock is slow, our messages seem to come from the future.
        node = _line(reporter) if reporter != CONTROL else claimed
        notices.clock_off(node.removeprefix("node."), report.off_s)
    elif reason not in {Refusal.TOO_OLD, Refusal.REPEATED}:
        notices.messages_refused(claimed, reason, queue=_line(report.queue))


def open_reply(raw: bytes, *, key: str, queue: str) -> dict[str, Any] | None:
    """Return the reply under `key` of the node that consumes `queue`, or None for another sender.

    The reply is a JSON object; the caller validates its content.
    """
    try:
        by, body = app.unseal(raw, key=key)
    except MessageRefused as error:
        log.warning("rejected reply in queue %s: %s", _line(queue), error.reason.value)
        return None
    if by not in (_engine_queues() if queue == ENGINE_QUEUE else {queue}):
        log.warning("rejected reply in queue %s: sent by %s", _line(queue), _line(by))
        return None
    return received(body, dict[str, Any], of=queue)


def _engine_queues() -> set[str]:
    return {node_queue(name) for name in settings.BERTH_ENGINE_NODES}


def _refuse(problem: str) -> None:
    log.warning("rejected message from %s: it %s", _line(sender() or "an unknown sender"), _line(problem))
    notices.messages_refused(_line(sender()), "wrong_node", queue=CONTROL)


def _line(text: str) -> str:
    return text[:120].encode("unicode_escape").decode()
