"""An app for tests: counts over HTTP and over a WebSocket, like a kernel that keeps its state.

Run as `python3 -I counting_app.py PORT`, with the standard library only. Each WebSocket message is answered
with the next number, which is also logged.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

numbers = itertools.count(1)
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        key = self.headers.get("Sec-WebSocket-Key")
        if key is not None:
            self.open(key)
            return
        body = b"counting"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def open(self, key: str) -> None:
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode() + MAGIC).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            kind, size = head[0] & 15, head[1] & 127
            if size == 126:
                (size,) = struct.unpack(">H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[place % 4] for place, byte in enumerate(self.rfile.read(size)))
            if kind == CLOSE:
                self.send(CLOSE, data)
                return
            if kind == PING:
                self.send(PONG, data)
            elif kind == TEXT:
                number = str(next(numbers))
                print("number", number, flush=True)
                self.send(TEXT, number.encode())

    def send(self, kind: int, data: bytes) -> None:
        self.wfile.write(bytes((128 | kind, len(data))) + data)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
