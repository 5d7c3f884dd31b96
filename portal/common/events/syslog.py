"""Syslog messages (RFC 5424) over TLS (RFC 5425), TCP (RFC 6587, octet counting) and UDP (RFC 5426).

Syslog has no acknowledgement. Over TCP and TLS, a batch counts as accepted when the server has acknowledged
every byte, read to the end and closed the connection. Otherwise the whole batch is sent again.
"""

from __future__ import annotations

import fcntl
import re
import socket
import ssl
import struct
import termios
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import urlsplit

from django.conf import settings

PRIORITY = 13 * 8 + 6
"""Facility `log audit`, severity `informational`."""
APP_NAME = "berth"
MAX_DATAGRAM = 60_000


class BatchRejected(Exception):
    """The server did not accept the batch. `code` is `timeout`, `tls`, `connection` or `dropped`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def message(*, at: datetime, host: str, message_id: str, text: str) -> bytes:
    """Return one message. `text` must be ASCII, such as JSON with escapes."""
    timestamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    header = f"<{PRIORITY}>1 {timestamp} {_name(host, 255)} {APP_NAME} - {_name(message_id, 32)} -"
    return f"{header} {text}".encode("ascii", "backslashreplace")


def send(url: str, messages: Sequence[bytes], *, timeout_s: float) -> None:
    """Send all messages in order. Raises `BatchRejected`."""
    parts = urlsplit(url)
    where = (parts.hostname or "", parts.port or 0)
    if parts.scheme == "udp":
        _send_datagrams(where, messages, timeout_s)
        return
    framed = b"".join(b"%d %s" % (len(message), message) for message in messages)
    connected = False
    try:
        with closing(socket.create_connection(where, timeout=timeout_s)) as plain:
            connected = True
            if parts.scheme == "tls":
                with closing(_context().wrap_socket(plain, server_hostname=where[0])) as secured:
                    secured.sendall(framed)
                    _finish_tls(secured)
            else:
                plain.sendall(framed)
                plain.shutdown(socket.SHUT_WR)
                _drain(plain)
                if _unacknowledged(plain):
                    raise BatchRejected("dropped")
    except TimeoutError as error:
        raise BatchRejected("timeout") from error
    except ssl.SSLError as error:
        raise BatchRejected("tls") from error
    except OSError as error:
        raise BatchRejected("dropped" if connected else "connection") from error


def _send_datagrams(where: tuple[str, int], messages: Sequence[bytes], timeout_s: float) -> None:
    """Send each message as one datagram. Delivery is not confirmed."""
    try:
        family, kind, protocol, _canonical, address = socket.getaddrinfo(*where, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind, protocol)) as opened:
            opened.settimeout(timeout_s)
            for message in messages:
                opened.sendto(message[:MAX_DATAGRAM], address)
    except OSError as error:
        raise BatchRejected("connection") from error


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.BERTH_OUTGOING_CA_FILE or None)


def _finish_tls(secured: ssl.SSLSocket) -> None:
    """Send close_notify and wait for the server's.

    Also accepts a server that only closes the connection.
    """
    try:
        secured.unwrap()
    except ssl.SSLError as error:
        if not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            raise


def _drain(opened: socket.socket) -> None:
    while opened.recv(4096):
        # Syslog servers send nothing. Discard anything until the connection closes.
        continue


def _unacknowledged(opened: socket.socket) -> int:
    """Return the number of bytes that the peer has not acknowledged."""
    answer = fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def _name(text: str, limit: int) -> str:
    return re.sub(r"[^!-~]", "", text)[:limit] or "-"
