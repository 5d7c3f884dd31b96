"""The app's port: listener, connections and readiness."""

# ruff: noqa: PTH115, PTH208, UP031

from __future__ import annotations

import _socket
import os

from .processes import read_text


def sockets_on(port: int) -> tuple[set[str], int] | None:
    """Return (inodes that listen on `port`, number of established connections), or None if unknown."""
    inodes: set[str] = set()
    established, readable = 0, False
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        text = read_text(path)
        if text is None:
            continue
        readable = True
        for line in text.splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) != port:
                continue
            if fields[3] == "0A":
                inodes.add(fields[9])
            elif fields[3] == "01":
                established += 1
    return (inodes, established) if readable else None


def is_own_listener(port: int, pids: list[int]) -> bool | None:
    """Return False if a foreign process listens on `port`; None if that cannot be determined."""
    sockets = sockets_on(port)
    if sockets is None or not sockets[0]:
        return None
    targets = {"socket:[%s]" % inode for inode in sockets[0]}
    for pid in pids:
        try:
            for name in os.listdir("/proc/%d/fd" % pid):
                try:
                    if os.readlink("/proc/%d/fd/%s" % (pid, name)) in targets:
                        return True
                except OSError:
                    continue
        except OSError:
            continue
    return False


def answers(port: int, path: str, timeout_s: float) -> bool:
    """Return True if the app's port answers `path` with a status below 500."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(("127.0.0.1", port))
        request = "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % (path, port)
        sock.sendall(request.encode())
        head = b""
        while b"\r\n" not in head and len(head) < 4096:
            chunk = sock.recv(4096)
            if not chunk:
                break
            head += chunk
        fields = head.split(b"\r\n", 1)[0].split()
        return (
            len(fields) >= 2
            and fields[0].startswith(b"HTTP/")
            and fields[1].isdigit()
            and int(fields[1]) < 500
        )
    except OSError:
        return False
    finally:
        sock.close()
