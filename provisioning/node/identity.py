"""Who this node is, and the keys by which it is believed and believes.

`BERTH_NODE_KEY` is its private key; the control plane's public keys are `BERTH_CONTROL_PUBLIC_KEY`, or the
file `keys/control.pub` of `BERTH_HOME`. Both in hexadecimal.
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
    """The control plane's public keys; none where they cannot be read, and then nothing is believed."""
    path = Path(os.environ.get("BERTH_HOME") or "var") / "keys" / "control.pub"
    try:
        text = os.environ.get("BERTH_CONTROL_PUBLIC_KEY") or path.read_text()
        return {CONTROL: signing.public_keys(text)}
    except (OSError, ValueError) as error:
        log.error("without the control plane's public key every command is refused: %s", error)
        return {}


def of_this_node(consumed: Callable[[], Iterable[str]]) -> Identity:
    """The identity of this node's worker: for its own queue, and the engine's where `consumed` has it."""
    own = node_queue(node_name())
    return Identity(
        name=signing.sender_of(node_name()),
        key=lambda: os.environ.get("BERTH_NODE_KEY", ""),
        keys=control_keys,
        queues=lambda: (own, *({ENGINE_QUEUE} & set(consumed()))),
    )
