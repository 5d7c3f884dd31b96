"""Front door: bodies, streams and uploads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import (
    PAGE,
    WS_A,
    Stack,
)
from test_front_door import door as door

from portal.embedded import proxy
from portal.workspaces.gateway import workspace_views

pytestmark = pytest.mark.engine
ID = "11111111-2222-3333-4444-555555555555"
LARGE_BYTES = 5 * 10**9


def test_portal_gets_complete_bodies_within_the_limit(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}/told"
    host = {"host": "localhost", "authorization": "Bearer good"}
    for size in (0, 1, proxy.SMALL_BODY_BYTES, proxy.SMALL_BODY_BYTES + 1, proxy.MAX_BODY_BYTES):
        answer = httpx.post(url, content=b"x" * size, headers=host)
        assert answer.json()["body"] == size
        chunked = httpx.post(url, content=iter([b"x" * size]), headers=host)
        assert chunked.json()["body"] == size
    for content in (b"x" * (proxy.MAX_BODY_BYTES + 1), iter([b"x" * (proxy.MAX_BODY_BYTES + 1)])):
        answer = httpx.post(url, content=content, headers=host)
        assert answer.status_code == 413
        assert answer.json()["code"] == "too_large"


def test_upload_to_a_workspace_is_streamed_without_limit(door: Stack) -> None:
    got = threading.Semaphore(0)
    sizes: list[int] = []

    async def takes(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            got.release()
            if not message.get("more_body"):
                break
        sizes.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"taken"})

    def parts() -> Iterator[bytes]:
        yield b"x" * 65536
        # The first part arrives before the rest is sent.
        assert got.acquire(timeout=20)
        yield from (b"x" * (1 << 20) for _ in range(16))

    with door.app(takes) as name:
        workspace_views.store_view(door.redis, door.view(socket=name, endpoint="", revision=2))
        url = f"http://127.0.0.1:{door.proxy_port}/upload"
        headers = {"host": door.host(), "authorization": "Bearer good"}
        answer = httpx.post(url, content=parts(), headers=headers, timeout=60)
    assert answer.text == "taken"
    assert sizes == [65536 + (16 << 20)]


@pytest.mark.thorough("5 GB; `make test` has a small upload")
def test_an_upload_of_five_gigabytes_passes(door: Stack, tmp_path: Path) -> None:
    """Streamed to a counter; the file is sparse."""
    file = tmp_path / "large"
    with file.open("wb") as made:
        made.truncate(LARGE_BYTES)
    sizes: list[int] = []

    def count(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            head = b""
            while b"\r\n\r\n" not in head:
                head += line.recv(65536)
            size = len(head.partition(b"\r\n\r\n")[2])
            room = memoryview(bytearray(1 << 20))
            while size < LARGE_BYTES and (got := line.recv_into(room)):
                size += got
            sizes.append(size)
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntaken")

    home = door.folder / WS_A
    home.mkdir(exist_ok=True)
    place = home / "app.9.sock"
    with contextlib.chdir(home), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place.name)
        listener.listen()
        threading.Thread(target=count, args=(listener,), daemon=True).start()
        workspace_views.store_view(door.redis, door.view(socket=f"{WS_A}.9", endpoint="", revision=2))
        headers = {"host": door.host(), "authorization": "Bearer good"}
        with file.open("rb") as sent:
            url = f"http://127.0.0.1:{door.proxy_port}/upload"
            answer = httpx.put(
                url, content=iter(lambda: sent.read(1 << 20), b""), timeout=300,
                headers={**headers, "content-length": str(LARGE_BYTES)},
            )  # fmt: skip
    place.unlink()
    assert answer.text == "taken" and sizes == [LARGE_BYTES]


@pytest.mark.parametrize("kind", [b"text/plain", b"text/event-stream"])
def test_app_output_is_not_buffered(door: Stack, kind: bytes) -> None:
    heard = threading.Event()

    async def tells(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while not heard.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"last"})

    with door.app(tells) as name:
        workspace_views.store_view(door.redis, door.view(socket=name, endpoint="", revision=2))
        headers = {"host": door.host(), "authorization": "Bearer good", "accept-encoding": "gzip"}
        url = f"http://127.0.0.1:{door.proxy_port}/"
        try:
            with httpx.stream("GET", url, headers=headers, timeout=20) as answer:
                parts = answer.iter_raw()
                assert next(parts) == b"first"
                heard.set()
                assert b"".join(parts) == b"last"
        finally:
            heard.set()


def test_portal_streams_are_unbuffered_and_pages_compressed(door: Stack) -> None:
    url = f"http://127.0.0.1:{door.proxy_port}"
    headers = {"host": "localhost", "accept-encoding": "gzip"}
    page = httpx.get(f"{url}/", headers=headers)
    assert (page.headers["content-encoding"], page.content) == ("gzip", PAGE)
    assert "content-encoding" not in httpx.get(f"{url}/", headers={**headers, "accept-encoding": ""}).headers
    for path in (f"/workspaces/{ID}/events/", "/events/"):
        with httpx.stream("GET", f"{url}{path}", headers=headers, timeout=20) as answer:
            assert "content-encoding" not in answer.headers
            assert next(answer.iter_raw()) == b"data: first\n\n"


def test_a_request_is_never_repeated(door: Stack) -> None:
    """An app that dies of a request gets it once."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def dies() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    asked.append(line.recv(65536).split(b"\r\n")[0])

        thread = threading.Thread(target=dies, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        workspace_views.store_view(door.redis, door.view(endpoint=endpoint, revision=2))
        for method in ("POST", "DELETE", "GET"):
            answer = door.get("/run", method=method, authorization="Bearer good", origin=door.origin())
            assert answer.status_code == 502
            assert answer.json()["code"] == "workspace_unavailable"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert asked == [b"POST /run HTTP/1.1", b"DELETE /run HTTP/1.1", b"GET /run HTTP/1.1"]
