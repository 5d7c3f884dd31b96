"""A server that answers immediately, so that a measurement compares the proxies in front of it.

`python small_server.py PORT SIZE` answers every GET on 127.0.0.1 with SIZE bytes of JSON, in one thread. It
is a self-contained program without packages, because its text also runs as a workspace's app (`-c`).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

port, size = int(sys.argv[1]), int(sys.argv[2])
body = b'"' + b"x" * (size - 2) + b'"'
length = b"Content-Length: " + str(size).encode()
ANSWER = b"\r\n".join((b"HTTP/1.1 200 OK", b"Content-Type: application/json", length, b"", body))


class Answering(asyncio.Protocol):
    """One connection. Requests have no bodies."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.begun = b""

    def data_received(self, data: bytes) -> None:
        *requests, self.begun = (self.begun + data).split(b"\r\n\r\n")
        self.transport.write(ANSWER * len(requests))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", port)
    await server.serve_forever()


asyncio.run(main())
