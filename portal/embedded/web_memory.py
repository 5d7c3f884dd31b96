"""Returns the memory of large requests to the system.

Parsed JSON takes many times the size of its body. A request that fails is part of a reference cycle with its
error, so only a collection frees it, and an idle process runs none. The C library keeps freed memory, too.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import suppress

RELEASE_AFTER_S = 2.0
"""One release serves all requests that end within this time."""
_lock = threading.Lock()
_timers: list[threading.Timer] = []


def release_soon() -> None:
    """Collect garbage and return free memory in `RELEASE_AFTER_S`, unless that is already due."""
    with _lock:
        if not _timers:
            timer = threading.Timer(RELEASE_AFTER_S, _release)
            timer.daemon = True
            _timers.append(timer)
            timer.start()


def _release() -> None:
    with _lock:
        _timers.clear()
    gc.collect()
    # Only glibc has it.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
