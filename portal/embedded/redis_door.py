"""TLS endpoint of Redis for nodes, in front of the server on loopback.

Run as `python -m portal.embedded.redis_door --listen HOST:PORT --to PORT --tls FOLDER`. The bundled server
has no TLS. Clients may open only a few connections and must present a node's certificate in time; their Redis
user limits their rights. The bytes from each node are limited, so that a node cannot fill Redis faster than
`portal.fleet.machines.redis_guard` reacts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("redis_door")

HANDSHAKE_S = 10.0
CONNECT_S = 5.0
MAX_CONNECTIONS = 2048
MAX_OF_A_NODE = 64
MAX_HANDSHAKES_OF_AN_ADDRESS = 16
CHUNK = 64 * 1024
BURST_BYTES = 32 << 20
BYTES_PER_S = 4 << 20
"""Maximum average bytes per second from a node on all its connections. A busy node sends a few KiB."""
BACKLOG = 256
_NODE = re.compile(r"node:([a-z0-9-]{1,63})")


@dataclass(slots=True)
class Allowance:
    """The bytes that a node may still send, on the loop's clock."""

    at: float
    left: float = BURST_BYTES

    def consume(self, count: int, *, now: float) -> float:
        """Return the seconds to wait before these bytes are forwarded."""
        self.left = min(BURST_BYTES, self.left + (now - self.at) * BYTES_PER_S) - count
        self.at = now
        return max(0.0, -self.left / BYTES_PER_S)


class Door:
    """Forwards connections of nodes to Redis on `port` of loopback."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context = context
        self._port = port
        self._open = 0
        self._handshakes: Counter[str] = Counter()
        self._of_node: Counter[str] = Counter()
        self._allowances: dict[str, Allowance] = {}

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Start listening. Raises `OSError`."""
        # TLS starts later, so that handshakes can be counted and limited.
        return await asyncio.start_server(self._accept, host, port, backlog=BACKLOG)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        if self._open >= MAX_CONNECTIONS or self._handshakes[address] >= MAX_HANDSHAKES_OF_AN_ADDRESS:
            writer.transport.abort()
            return
        self._open += 1
        self._handshakes[address] += 1
        try:
            try:
                node = await self._shake_hands(writer)
            finally:
                self._handshakes[address] -= 1
                if not self._handshakes[address]:
                    del self._handshakes[address]
            if node and self._of_node[node] < MAX_OF_A_NODE:
                await self._relay(node, reader, writer)
        except (OSError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError) as error:
            log.debug("connection from %s ended: %s", address, error)
        finally:
            self._open -= 1
            writer.close()
            writer.transport.abort()

    async def _shake_hands(self, writer: asyncio.StreamWriter) -> str:
        """Return the name of the connected node; empty if the certificate is not a node's."""
        await writer.start_tls(self._context, ssl_handshake_timeout=HANDSHAKE_S)
        certificate = writer.get_extra_info("peercert") or {}
        names = [
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        ]
        match = _NODE.fullmatch(names[0]) if len(names) == 1 else None
        return match[1] if match else ""

    async def _relay(self, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._of_node[node] += 1
        now = asyncio.get_running_loop().time()
        allowance = self._allowances.setdefault(node, Allowance(now))
        try:
            async with asyncio.timeout(CONNECT_S):
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                pumps = [
                    asyncio.create_task(_copy(reader, inner_writer, allowance)),
                    asyncio.create_task(_copy(inner_reader, writer)),
                ]
                _done, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for task in left:
                    task.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                inner_writer.transport.abort()
        finally:
            self._of_node[node] -= 1
            if not self._of_node[node]:
                del self._of_node[node]


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowance: Allowance | None = None
) -> None:
    """Forward data until its end, with back pressure, within the allowance."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(CHUNK):
        if allowance is not None and (wait_s := allowance.consume(len(data), now=loop.time())):
            await asyncio.sleep(wait_s)
        writer.write(data)
        await writer.drain()


def context_of(folder: Path) -> ssl.SSLContext:
    """Return a TLS context for clients with Berth's certificates. Raises `OSError` or `ssl.SSLError`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "authority.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "nodes-door.pem", folder / "nodes-door.key")
    return context


async def run(listen: str, to: int, folder: Path) -> None:
    """Serve until SIGINT or SIGTERM."""
    host, _, port = listen.rpartition(":")
    server = await Door(context_of(folder), to).serve(host.strip("[]"), int(port))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()


def main(argv: Sequence[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="portal.embedded.redis_door")
    parser.add_argument("--listen", required=True, help="host:port")
    parser.add_argument("--to", required=True, type=int, help="port of Redis on loopback")
    parser.add_argument("--tls", required=True, type=Path, help="folder of the certificates")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(run(options.listen, options.to, options.tls))
    except (OSError, ssl.SSLError) as error:
        print(f"the door to Redis cannot be opened: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
