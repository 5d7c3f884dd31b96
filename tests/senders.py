"""Signed messages as from a given sender, for tests that call tasks without a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery._state import _task_stack

from portal.celery import app
from provisioning.signed_celery import SEALED, SENDER
from provisioning.signing import Signer, public_text, sender_of

CONTROL_KEY = "c0" * 32
NODE_KEY = "a0" * 32
OTHER_KEY = "b0" * 32


@contextmanager
def sent_by(sender: str, task: Any = None) -> Iterator[None]:
    """Within the block, the running task has a message of `sender`: `control` or `node.<name>`."""
    task = task or app.tasks["control.message_refused"]
    _task_stack.push(task)
    task.push_request(**{SENDER: sender})
    try:
        yield
    finally:
        task.pop_request()
        _task_stack.pop()


def trust(folder: Path, name: str, key: str) -> None:
    """Let the control plane know a node's public key, in the folder `BERTH_NODE_KEYS_DIR`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pub").write_text(public_text(key))


def sealed(body: Any, *, key: str, name: str = "node-1", private: str = NODE_KEY) -> bytes:
    """Return the value that a node writes under a Redis key for a waiting caller."""
    stamp = Signer(sender_of(name), private).stamp(SEALED, key, body, now=time.time())
    return json.dumps({"body": body, "stamp": stamp}).encode()
