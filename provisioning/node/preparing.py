"""Lets drivers prepare spare resources that shorten the next starts.

Nothing waits for them, and losses are compensated at the next inventory.
"""

from __future__ import annotations

import logging
import threading

from celery.signals import worker_process_init

from provisioning.driver import Driver
from provisioning.node.local_settings import driver_for
from provisioning.node.worker import WORKER_PID
from provisioning.types import PoolConfig

log = logging.getLogger(__name__)
AFTER_START_S = 3.0
"""Delay after a start, so that the preparation does not slow it down."""

_due: dict[str, threading.Timer] = {}
_in_pool_process = False


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    global _in_pool_process
    _in_pool_process = True


def prepare_host(driver: Driver) -> None:
    """Prepare this machine for the driver if this is a node's worker; otherwise do nothing."""
    if _in_pool_process:
        driver.prepare_host()


def now(pool: PoolConfig) -> None:
    """Prepare starts of the pool. Never raises."""
    try:
        driver_for(pool).warm_up(owner=WORKER_PID)
    except Exception as error:
        log.warning("could not prepare starts of pool %s: %s", pool.slug, error)


def schedule_preparation(pool: PoolConfig) -> None:
    """Prepare starts of the pool after a delay, once for all requests until then.

    Runs in a thread of a worker's process, because a waiting message would block others. Does nothing
    elsewhere.
    """
    if not _in_pool_process or pool.slug in _due:
        return
    timer = _due[pool.slug] = threading.Timer(AFTER_START_S, _is_due, args=(pool,))
    timer.daemon = True
    timer.start()


def _is_due(pool: PoolConfig) -> None:
    # Delete the entry first: a start meanwhile schedules another run.
    del _due[pool.slug]
    now(pool)
