"""The consumer of workers that run only signed messages: it drops messages that Celery cannot use.

Celery would log each of them with its content, so that one sender could fill the disk.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer import consumer

from provisioning.signing import MessageRefused, Refusal

log = logging.getLogger(__name__)


class Consumer(consumer.Consumer):  # type: ignore[misc]
    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._drop(message, Refusal.UNDECODABLE)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        self._drop(message, Refusal.UNKNOWN_TASK)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        self._drop(message, Refusal.UNDECODABLE)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        self._drop(message, Refusal.UNDECODABLE)

    def _drop(self, message: Any, refusal: Refusal) -> None:
        """Count, log and report the message, and acknowledge it."""
        task, queue = (str(message.headers.get("task")), str(message.delivery_info.get("routing_key")))
        self.app.gate.note(self.app, MessageRefused(refusal), task, queue=queue)
        message.ack_log_error(log, self.connection_errors)
