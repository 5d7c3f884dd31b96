"""Kombu's Redis transport: with TLS as in `redis_client`, and robust against lost acknowledgements.

Kombu counts a message as held until Redis has accepted its acknowledgement, and ignores a failure to do so.
After as many failures as its prefetch limit, a worker consumes nothing more, even when Redis is back, while
it looks alive. Here an acknowledged message no longer counts as held, whatever Redis answers. It is
redelivered after `visibility_timeout`, which leases make harmless.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES, redis

from provisioning.redis_client import TLSConnection


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


class Transport(redis.Transport):
    Channel = Channel


def install() -> None:
    """Use this transport for `redis://` and `rediss://` in this process from now on."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
