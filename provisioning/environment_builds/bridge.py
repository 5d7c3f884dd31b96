"""Forwards from the loopback of a build's network to the proxy outside. Standard library only, any Python 3.

Run as `python -I -S bridge.py SOCKET PORT PROGRAM ARG…` inside a build's sandbox. It listens on the loopback
address, forwards each connection to the Unix socket, runs the program, and exits with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading

CHUNK_BYTES = 256 * 1024


def main() -> int:
    path, port, argv = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    threading.Thread(target=accept, args=(listener, path), daemon=True).start()
    return subprocess.call(argv)


def accept(listener: socket.socket, path: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=pass_on, args=(client, path), daemon=True).start()


def pass_on(client: socket.socket, path: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
        except OSError:
            return
        returning = threading.Thread(target=copy, args=(server, client), daemon=True)
        returning.start()
        copy(client, server)
        returning.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    code = main()
    os._exit(code if code >= 0 else 128 - code)
