"""Runs the GPU watcher inside the node's worker, if an NVIDIA library is installed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from celery import Celery

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.check_messages import DeviceError, DeviceErrors
from provisioning.node.identity import node_name
from provisioning.node.sampling import has_library
from provisioning.node.watch_step import WatchStep

if TYPE_CHECKING:
    from provisioning.gpu.watcher.watcher import Watcher
    from provisioning.gpu.watcher.xid_report import XidReport


class DeviceErrorSender:
    """The watcher's sink: sends to the control plane. Raises errors of the broker; the watcher retries."""

    def __init__(self, app: Celery, *, pool_slug: str, node: str) -> None:
        self._app, self._pool_slug, self._node = app, pool_slug, node

    def __call__(self, reports: list[XidReport]) -> None:
        errors = tuple(DeviceError(report.slot, report.xid, report.line) for report in reports)
        self._app.send_task(
            "control.apply_device_errors",
            kwargs={"report": messages.dump(DeviceErrors(self._pool_slug, self._node, errors))},
            queue=CONTROL_QUEUE,
        )


class WatcherStep(WatchStep):
    """Watches the GPUs for errors."""

    def watch(self, consumer: Any) -> Watcher | None:
        if not has_library():
            return None
        # Imported here, because machines without a GPU do not need it.
        from provisioning.gpu.watcher.watcher import Watcher

        pool = os.environ.get("BERTH_NODE_POOL", "")
        return Watcher(DeviceErrorSender(consumer.app, pool_slug=pool, node=node_name()))


def install(app: Celery) -> None:
    """Add a watcher to every worker of `app`."""
    app.steps["consumer"].add(WatcherStep)
