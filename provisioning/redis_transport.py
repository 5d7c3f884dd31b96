"""Kombu's Redis transport: over TLS as in `redis_client`, and going on after lost acknowledgements.

Kombu counts a message as held until Redis has taken its acknowledgement, and swallows the error where Redis
does not. After as many of these as a worker may hold it asks for nothing more, not even when Redis is back,
while it looks alive. Here a message that has been answered is held no longer, whatever Redis says. It is
delivered again when its time is over (`visibility_timeout`), which leases make harmless.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES, redis

from provisioning.redis_client import TLSConnection


class QoS(redis.QoS):
    """Counts what this worker holds."""

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
    """What `redis://` and `rediss://` mean in this process, from now on."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
