"""A TLS proxy in front of a port, like the Redis door; it can be stopped and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path

from tests.host.authority import PORTAL_NAME, Authority
from tests.ports import free_port


class TLSProxy:
    """Accepts clients with a certificate of the authority, under `name`."""

    def __init__(self, folder: Path, authority: Authority, *, to: int, name: str = PORTAL_NAME) -> None:
        self._to = to
        certificate, key = authority.write(folder, name)
        self._context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "authority.pem")
        )
        self._context.load_cert_chain(certificate, key)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = free_port()  # reserved while the proxy is stopped

    def start(self) -> None:
        """Listen, always at the same port."""

        async def begin() -> None:
            self._server = await asyncio.start_server(
                self._join, "127.0.0.1", self.port, ssl=self._context, reuse_address=True
            )

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)

    def stop(self) -> None:
        """Stop listening, and close every connection."""

        async def end() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None
            for writer in self._writers:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)

    def close(self) -> None:
        self.stop()

        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, inner_writer}
        try:
            directions = [self._copy(reader, inner_writer), self._copy(inner_reader, writer)]
            await asyncio.wait(
                [asyncio.create_task(direction) for direction in directions], return_when="FIRST_COMPLETED"
            )
        finally:
            self._writers -= {writer, inner_writer}
            for stream in (writer, inner_writer):
                stream.transport.abort()

    @staticmethod
    async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
