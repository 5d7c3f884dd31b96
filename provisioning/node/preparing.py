"""Has drivers make ready what shortens the next starts.

Nothing waits for it, and what is lost with a process is made up for at the next inventory.
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
"""A start is left alone for so long: what is prepared takes time from it."""

_due: dict[str, threading.Timer] = {}
_in_pool_process = False


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _begin(**_: object) -> None:
    global _in_pool_process
    _in_pool_process = True


def arrange(driver: Driver) -> None:
    """Put this machine in order for the driver, where this is a node's worker. Elsewhere nothing is done."""
    if _in_pool_process:
        driver.arrange()


def now(pool: PoolConfig) -> None:
    """Prepare starts of the pool. Never raises."""
    try:
        driver_for(pool).prepare(owner=WORKER_PID)
    except Exception as error:
        log.warning("preparing starts of pool %s failed: %s", pool.slug, error)


def soon(pool: PoolConfig) -> None:
    """Prepare starts of the pool in a while, once for all who ask until then.

    In a thread of a worker's process: a message that waits in the worker would be in the way of others.
    Elsewhere nothing is prepared.
    """
    if not _in_pool_process or pool.slug in _due:
        return
    timer = _due[pool.slug] = threading.Timer(AFTER_START_S, _due_now, args=(pool,))
    timer.daemon = True
    timer.start()


def _due_now(pool: PoolConfig) -> None:
    # First: a start that comes while this goes on has it done once more.
    del _due[pool.slug]
    now(pool)
