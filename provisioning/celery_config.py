"""Celery and Redis settings of both planes. Redis only carries hints: the database is the source of truth."""

from __future__ import annotations

import gc
from collections.abc import Callable

from celery import Celery
from celery.signals import worker_before_create_process

from provisioning import redis_transport
from provisioning.envelopes import Undecodable

KEY_PREFIX = "berth:q:"
REPLY_PREFIX = "berth:reply:"
ENGINE_QUEUE = "engine"
CONTROL_QUEUE = "control"


def node_queue(node_name: str) -> str:
    """Return the queue that the worker on a node consumes."""
    return f"node.{node_name}"


def outbox(node_name: str) -> str:
    """Return the queue to which a node writes its messages to the control plane."""
    return f"{CONTROL_QUEUE}.{node_queue(node_name)}"


def _freeze_loaded_objects(**_: object) -> None:
    """Freeze objects before a pool process is forked, so garbage collection keeps pages shared."""
    gc.collect()
    gc.freeze()


def configure(
    app: Celery,
    *,
    broker_url: str,
    default_queue: str,
    unacknowledged: str = "",
    outbox: str = "",
    on_undecodable: Callable[[str, Undecodable], None] | None = None,
) -> None:
    """Apply the settings common to both planes.

    `unacknowledged` prefixes the keys of messages that a worker holds: a node must not read those of another
    node. With `outbox`, messages to the control plane go to that queue instead. `on_undecodable` is called
    with the queue and the error of each envelope that a worker drops.
    """
    redis_transport.install()
    worker_before_create_process.connect(_freeze_loaded_objects)
    app.conf.update(
        broker_url=broker_url,
        task_default_queue=default_queue,
        broker_transport_options={
            "global_keyprefix": KEY_PREFIX,
            **{
                f"{name}_key": f"{unacknowledged}{name}"
                for name in ("unacked", "unacked_index", "unacked_mutex")
            },
            **({"on_undecodable": on_undecodable} if on_undecodable else {}),
            **({"other_names": {CONTROL_QUEUE: outbox}} if outbox else {"outboxes_of": CONTROL_QUEUE}),
            # One list per queue: there are no priorities.
            "priority_steps": [0],
            # A message of a dead worker is redelivered after this; the sweep is usually faster.
            "visibility_timeout": 120,
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 15,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Redis rejects writes while its disk is full (MISCONF). Without this the worker gives up, and its
        # process may continue without consuming.
        broker_channel_error_retry=True,
        # Sending fails fast: the row stays due, and the sweep sends it again.
        task_publish_retry=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_time_limit=60,
        task_soft_time_limit=50,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        # Otherwise anyone who may publish there could stop every worker.
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        timezone="UTC",
        enable_utc=True,
    )
