"""Celery application of the nodes: `celery -A provisioning.node.worker worker -Q node.NAME,engine`."""

from __future__ import annotations

import os
from typing import Any

from celery.signals import worker_ready

from provisioning import heartbeat
from provisioning.celery_config import CONTROL_QUEUE, ENGINE_QUEUE, configure, node_queue, outbox
from provisioning.node import hello, identity, measuring, memory_watch, sampling, watching
from provisioning.signed_celery import SignedCelery

WORKER_PID = os.getpid()
"""The worker itself; the processes of its pool are forked from it."""

app: SignedCelery = SignedCelery(
    "berth-node",
    identity=identity.node_identity(lambda: app.amqp.queues.consume_from),
    include=[
        "provisioning.node.tasks",
        "provisioning.node.gpu_tasks",
        "provisioning.node.environment_tasks",
        "provisioning.node.file_tasks",
        "provisioning.node.home_archives",
        "provisioning.node.home_moves",
    ],
)
configure(
    app,
    broker_url=os.environ.get("BERTH_NODE_REDIS_URL", "redis://127.0.0.1:8002/0"),
    default_queue=ENGINE_QUEUE,
    unacknowledged=f"{node_queue(identity.node_name())}:",
    outbox=outbox(identity.node_name()),
    on_undecodable=app.drop_undecodable,
)
heartbeat.install(app)
sampling.install(app)
watching.install(app)
measuring.install(app)
memory_watch.install(app)
hello.install(app)


@worker_ready.connect
def announce(sender: Any, **_: object) -> None:
    """Announce this worker to the control plane, which then requests an inventory immediately."""
    queues = sorted(sender.task_consumer.queues, key=str)
    app.send_task(
        "control.worker_ready",
        kwargs={"queues": [getattr(queue, "name", str(queue)) for queue in queues]},
        queue=CONTROL_QUEUE,
    )
