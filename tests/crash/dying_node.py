"""A node worker killed mid-task: `python -m tests.crash.dying_node PLACE`, command on stdin.

It runs the task as the worker does and receives SIGKILL when PLACE, a dotted function name, is called. Its
messages to the control plane are lost.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from provisioning.node import tasks


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(place: str) -> None:
    path, _, name = place.rpartition(".")
    try:
        owner: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, kind = path.rpartition(".")
        owner = getattr(importlib.import_module(module), kind)
    if not callable(getattr(owner, name)):
        raise TypeError(f"{place} is no function")
    setattr(owner, name, die)
    tasks.execute.run(json.load(sys.stdin))


if __name__ == "__main__":
    main(sys.argv[1])
