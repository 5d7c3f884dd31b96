"""The garbage collector while a process starts."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from portal.common import loading
usual = gc.get_threshold()
loading.begin()
assert gc.get_threshold() == loading.THRESHOLDS != usual
kept = [[] for _ in range(1000)]
loading.end()
assert gc.get_threshold() == usual and gc.get_freeze_count() >= 1000
"""


def test_garbage_collection_is_rare_during_startup() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
