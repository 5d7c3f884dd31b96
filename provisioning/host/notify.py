"""Reports service state to systemd (sd_notify); does nothing if not started by systemd."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """Send `READY=1`, `STOPPING=1` or `STATUS=…`; errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as plug:
            plug.sendto(message.encode(), address)
    except OSError:
        return
