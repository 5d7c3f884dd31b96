"""Kombu's Redis transport: with TLS as in `redis_client`, and robust against two faults.

Kombu counts a message as held until Redis has accepted its acknowledgement, and ignores a failure to do so.
After as many failures as its prefetch limit, a worker consumes nothing more, even when Redis is back, while
it looks alive. Here an acknowledged message no longer counts as held, whatever Redis answers. It is
redelivered after `visibility_timeout`, which leases make harmless.

Kombu also ends the worker when an envelope cannot be decoded. Here it is dropped and reported.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis

from provisioning import envelopes
from provisioning.redis_client import TLSConnection

log = logging.getLogger(__name__)


def _log_undecodable(queue: str, error: envelopes.Undecodable) -> None:
    log.warning("a message in queue %s was dropped, because it cannot be decoded: %s", queue, error)


class QoS(redis.QoS):
    """Counts the messages that this worker holds."""

    def ack(self, delivery_tag: str) -> None:
        self._quick_ack(delivery_tag)
        super().ack(delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._quick_ack(delivery_tag)
        super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]


class Channel(redis.Channel):
    QoS = QoS
    connection_class_ssl: type[TLSConnection] = TLSConnection
    on_undecodable = staticmethod(_log_undecodable)
    """Called with the queue and the error of each dropped envelope. A transport option."""
    from_transport_options: tuple[str, ...] = (  # type: ignore[assignment]
        *redis.Channel.from_transport_options,
        "on_undecodable",
    )

    def _brpop_read(self, **options: Any) -> bool:
        """Deliver the message that Redis has answered with. Raises `Empty` if there is none."""
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
                self.connection._deliver(message, queue)
            return True
        finally:
            self._in_poll = None  # type: ignore[assignment]
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]


class Transport(redis.Transport):
    Channel = Channel


def install() -> None:
    """Use this transport for `redis://` and `rediss://` in this process from now on."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
