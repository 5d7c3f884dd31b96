"""Tells systemd how a service is (sd_notify); nothing where no systemd has started it."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """`READY=1`, `STOPPING=1`, `STATUS=…`; what cannot be told is left out."""
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
