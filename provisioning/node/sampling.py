"""Runs the GPU sampler inside the node's worker, if an NVIDIA library is installed.

Rollups are sent to the control plane once a minute. The latest sample of each device is also stored in Redis
briefly, for live charts; losing it is harmless.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery, bootsteps
from celery.signals import worker_before_create_process

from provisioning import messages, redis_client
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.gpu import forks
from provisioning.gpu.problems import LIBRARY
from provisioning.live_samples import LIVE_TTL_S, live_key
from provisioning.node.identity import node_name

if TYPE_CHECKING:
    from provisioning.gpu.rollup import Rollup
    from provisioning.gpu.sampler import Sampler
    from provisioning.node.guarding import Guard

log = logging.getLogger(__name__)

LIVE_INTERVAL_S = 2.0
MAX_SAMPLES_PER_MESSAGE = 64


def has_library() -> bool:
    """Return whether the driver's library can be loaded; cheap if it is not installed."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


class RollupSender:
    """The sampler's sink: sends to the control plane. Raises errors of the broker; the sampler retries."""

    def __init__(self, app: Celery, *, pool_slug: str, node_name: str) -> None:
        self._app = app
        self._pool_slug = pool_slug
        self._node_name = node_name

    def __call__(self, rollups: list[Rollup]) -> None:
        for first in range(0, len(rollups), MAX_SAMPLES_PER_MESSAGE):
            self._app.send_task(
                "control.apply_samples",
                kwargs={
                    "pool_slug": self._pool_slug,
                    "node_name": self._node_name,
                    "rollups": messages.dump(rollups[first : first + MAX_SAMPLES_PER_MESSAGE]),
                },
                queue=CONTROL_QUEUE,
            )


class LiveSamplePublisher:
    """Writes the latest samples to Redis. An unavailable Redis is not an error."""

    def __init__(self, broker_url: str, sampler: Sampler) -> None:
        self._sampler = sampler
        self._client = redis_client.client(broker_url, socket_timeout=2, socket_connect_timeout=2)
        self._shown: dict[str, float] = {}

    def publish(self) -> None:
        """Write samples that are new since the last call."""
        new_samples = {
            uuid: sample
            for uuid, sample in self._sampler.latest().items()
            if self._shown.get(uuid) != sample.at_s
        }
        if not new_samples:
            return
        try:
            with self._client.pipeline(transaction=False) as pipe:
                key = live_key(node_name())
                pipe.hset(key, mapping={uuid: json.dumps(asdict(item)) for uuid, item in new_samples.items()})
                pipe.expire(key, LIVE_TTL_S)
                pipe.execute()
        except (redis.RedisError, OSError) as error:
            log.debug("could not publish live samples: %s", error)
            return
        self._shown = {uuid: sample.at_s for uuid, sample in new_samples.items()} | {
            uuid: at_s for uuid, at_s in self._shown.items() if uuid not in new_samples
        }

    def close(self) -> None:
        try:
            self._client.close()
        except (redis.RedisError, OSError) as error:
            log.debug("could not close the connection for live samples: %s", error)


class SamplerStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the sampler when the worker consumes, and keeps it running while the broker is unavailable."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._sampler: Sampler | None = None
        self._guard: Guard | None = None
        self._live: LiveSamplePublisher | None = None
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        if self._sampler is None:
            if not has_library():
                return
            # Imported here, because machines without a GPU do not need it.
            from provisioning.gpu import sampler, sources
            from provisioning.node import guarding

            sink = RollupSender(
                consumer.app, pool_slug=os.environ.get("BERTH_NODE_POOL", ""), node_name=node_name()
            )
            self._sampler = sampler.Sampler(1, sources.NvmlDevices(), sink)
            self._sampler.start()
            self._guard = guarding.start(consumer.app, self._sampler.latest)
        self._live = LiveSamplePublisher(consumer.app.conf.broker_url, self._sampler)
        self._timer = consumer.timer.call_repeatedly(LIVE_INTERVAL_S, self._live.publish)

    def stop(self, _consumer: Any) -> None:
        """Stop the live output when the connection is lost: sampling continues until `shutdown`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None:
            self._live.close()
            self._live = None

    def shutdown(self, consumer: Any) -> None:
        self.stop(consumer)
        if self._guard is not None:
            self._guard.stop(timeout_s=2.0)
            self._guard = None
        if self._sampler is not None:
            self._sampler.stop(timeout_s=2.0)
            self._sampler = None


def _close_nvml(**_: object) -> None:
    """Close NVML before forking a pool process: a GPU that it holds open could not be reset."""
    if not forks.prepare():
        log.warning("starting a worker process with NVML open: the NVIDIA driver does not answer")


def install(app: Celery) -> None:
    """Add a sampler to every worker of `app`."""
    app.steps["consumer"].add(SamplerStep)
    worker_before_create_process.connect(_close_nvml)
