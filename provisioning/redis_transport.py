"""Kombu's Redis transport: with TLS as in `redis_client`, and robust against two faults.

Kombu counts a message as held until Redis has accepted its acknowledgement, and ignores a failure to do so.
After as many failures as its prefetch limit, a worker consumes nothing more, even when Redis is back, while
it looks alive. Here an acknowledged message no longer counts as held, whatever Redis answers. It is
redelivered after `visibility_timeout`, which leases make harmless.

Kombu also ends the worker when an envelope cannot be decoded. Here it is dropped and reported.

Each node writes to its own queue, the outbox, so that it cannot fill the control plane's queue. Workers
of the control plane take turns between their queue and all outboxes. Kombu's routing tables in Redis are not
used, because anyone who can write them can copy messages elsewhere: the routing key is the queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis

from provisioning import envelopes, node_users
from provisioning.redis_client import TLSConnection

log = logging.getLogger(__name__)
RESTORE_EVERY_S = 30
OUTBOXES_FRESH_S = 2.0
"""How long a worker caches the list of nodes: one may have joined since."""


def _log_undecodable(queue: str, error: envelopes.Undecodable) -> None:
    log.warning("dropped undecodable message from queue %s: %s", queue, error)


class QoS(redis.QoS):
    """Counts the messages that this worker holds."""

    def ack(self, delivery_tag: str) -> None:
        self._quick_ack(delivery_tag)
        super().ack(delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._quick_ack(delivery_tag)
        super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        """Redeliver up to `num` messages of dead workers; `None` is all.

        The lock needs no script: nodes may run none.
        """
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % interval:
            return
        with self.channel.conn_or_acquire() as client:
            if not client.set(self.unacked_mutex_key, "1", nx=True, ex=RESTORE_EVERY_S):
                return
            until = time.time() - self.visibility_timeout
            offset = None if num is None else start
            for tag in client.zrange(
                self.unacked_index_key, until, 0, desc=True, byscore=True, offset=offset, num=num
            ):
                self.restore_by_tag(tag, client)  # type: ignore[no-untyped-call]


class Channel(redis.Channel):
    QoS = QoS
    connection_class_ssl: type[TLSConnection] = TLSConnection
    on_undecodable = staticmethod(_log_undecodable)
    """Called with the queue and the error of each dropped envelope. A transport option."""
    from_transport_options: tuple[str, ...] = (  # type: ignore[assignment]
        *redis.Channel.from_transport_options,
        *("on_undecodable", "other_names", "outboxes_of"),
    )
    other_names: Mapping[str, str] = {}
    """Queues that have another name in Redis. A transport option."""
    outboxes_of = ""
    """With the messages of this queue, those in the outboxes of nodes are consumed. A transport option."""
    _outboxes: tuple[str, ...] = ()
    _listed_at = float("-inf")

    @property
    def active_queues(self) -> list[str]:
        """Queues that are consumed, with the outboxes of nodes in a worker of the control plane."""
        queues: list[str] = super().active_queues
        return [*queues, *self._outboxes] if self.outboxes_of in queues else queues

    def _brpop_start(self, timeout: float | None = None) -> None:
        if self.outboxes_of in self._active_queues and time.monotonic() - self._listed_at >= OUTBOXES_FRESH_S:
            self._list_outboxes()
        super()._brpop_start(timeout)  # type: ignore[no-untyped-call]

    def _list_outboxes(self) -> None:
        with self.conn_or_acquire() as client:
            outboxes = tuple(f"{self.outboxes_of}.node.{name}" for name in node_users.names(client))
        self._listed_at = time.monotonic()
        if outboxes != self._outboxes:
            self._outboxes = outboxes
            self._update_queue_cycle()  # type: ignore[no-untyped-call]

    def _q_for_pri(self, queue: str, pri: int) -> str:
        name: str = super()._q_for_pri(self.other_names.get(queue, queue), pri)  # type: ignore[no-untyped-call]
        return name

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        return [routing_key]

    def _queue_bind(self, *_: object) -> None:
        """Do nothing: without routing tables there is nothing to bind."""

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the message in Redis's answer. Raises `Empty` if there is none."""
        try:
            try:
                answer = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                # The next round reconnects.
                self.client.connection.disconnect()
                raise
            if not answer:
                raise Empty
            key, raw = answer
            queue = key.decode().rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            try:
                message = envelopes.parse(raw, queue=queue)
            except envelopes.Undecodable as error:
                self.on_undecodable(queue, error)
            else:
                self.connection._deliver(message, self.outboxes_of if queue in self._outboxes else queue)
            return True
        finally:
            self._in_poll = None  # type: ignore[assignment]
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]


class Transport(redis.Transport):
    Channel = Channel


def install() -> None:
    """Use this transport for `redis://` and `rediss://` in this process from now on."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
