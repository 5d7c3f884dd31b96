"""This node's identity, its own key and the keys that it trusts.

`BERTH_NODE_KEY` is its private key. The control plane's public keys are in `BERTH_CONTROL_PUBLIC_KEY`, or in
the file `keys/control.pub` of `BERTH_HOME`. Both are hexadecimal.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from provisioning import signing
from provisioning.celery_config import ENGINE_QUEUE, node_queue
from provisioning.signed_celery import Identity
from provisioning.signing import CONTROL, Keys

log = logging.getLogger(__name__)


def node_name() -> str:
    return os.environ.get("BERTH_NODE_NAME") or socket.gethostname()


def control_keys() -> Keys:
    """Return the control plane's public keys; none if they cannot be read, so all messages are rejected."""
    path = Path(os.environ.get("BERTH_HOME") or "var") / "keys" / "control.pub"
    try:
        text = os.environ.get("BERTH_CONTROL_PUBLIC_KEY") or path.read_text()
        return {CONTROL: signing.public_keys(text)}
    except (OSError, ValueError) as error:
        log.error("control plane's public key missing, rejecting every command: %s", error)
        return {}


def node_identity(consumed: Callable[[], Iterable[str]]) -> Identity:
    """Return this node's identity, for its own queue and, if `consumed` has it, the engine's."""
    own = node_queue(node_name())
    return Identity(
        name=signing.sender_of(node_name()),
        key=lambda: os.environ.get("BERTH_NODE_KEY", ""),
        keys=control_keys,
        queues=lambda: (own, *({ENGINE_QUEUE} & set(consumed()))),
    )
