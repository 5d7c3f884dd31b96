"""Returns memory to the system after large requests.

Parsed JSON takes many times the size of its body. A failed request is in a reference cycle with its error, so
only garbage collection frees it, which idle processes do not run. The C library also keeps freed memory.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import suppress

RELEASE_AFTER_S = 2.0
"""Delay of a release, which serves all requests that end in the meantime."""
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
    # Only glibc has this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
