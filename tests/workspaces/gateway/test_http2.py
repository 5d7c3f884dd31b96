"""HTTP/2 between browser and the proxy in front, set up as in docs/tls.md: everything works as without."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gateway_support import WS_A, Stack, caddy_binary, eventually, free_port, running, started
from websockets.asyncio.client import connect

from portal.workspaces.gateway import workspace_views
from tests.certificates import Authority
from tests.e2e.how_to_machine import blocks

pytestmark = pytest.mark.engine
HOST = f"{WS_A}.localhost"
PROXY_SECRET = "only-the-proxy-knows-this-0123456789"
SAID = "%{http_version} %{http_code}"
UPLOAD_BYTES = 96 << 20
"""More than any buffer on the way holds."""


@dataclass(frozen=True, slots=True)
class Front:
    """A TLS proxy before a front door."""

    stack: Stack
    port: int
    authority: Path

    def curl(self, *arguments: str, path: str = "/", token: str = "good") -> list[str]:
        return [
            *("curl", "--silent", "--show-error", "--http2", "--cacert", str(self.authority)),
            *("--resolve", f"{HOST}:{self.port}:127.0.0.1", "--header", f"Authorization: Bearer {token}"),
            *(*arguments, f"https://{HOST}:{self.port}{path}"),
        ]


def nginx(
    folder: Path, port: int, certificate: Path, key: Path, door: int
) -> tuple[list[str], dict[str, str]]:
    [text] = blocks("tls", "nginx")
    text = text.replace("SECRET;", f"{PROXY_SECRET};").replace("listen 443", f"listen {port}")
    # A second server has no port here: it answers requests without TLS.
    text = _as_here(text[: text.rindex("server {")], certificate, key, door)
    written = folder / "nginx.conf"
    written.write_text(
        f"daemon off; user root; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{_temporary(folder)}\n{text}\n}}\n"
    )
    return ["nginx", "-p", str(folder), "-c", str(written)], {}


def _temporary(folder: Path) -> str:
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(f"{name}_temp_path {folder}/{name};" for name in names)


def caddy(
    folder: Path, port: int, certificate: Path, key: Path, door: int
) -> tuple[list[str], dict[str, str]]:
    [text] = blocks("tls", "caddy")
    text = _as_here(text[: text.index("http://berth")], certificate, key, door)
    text = text.replace("{\n", f":{port} {{\n", 1).replace(f", *.localhost :{port}", f":{port}")
    written = folder / "Caddyfile"
    written.write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{text}")
    return [caddy_binary(), "run", "--config", str(written)], {
        "BERTH_PROXY_SECRET": PROXY_SECRET,
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }


def _as_here(text: str, certificate: Path, key: Path, door: int) -> str:
    for ours, here in (
        ("berth.example.org, *.berth.example.org", HOST),
        ("berth.example.org *.berth.example.org", HOST),
        ("/etc/ssl/berth/certificate.pem", str(certificate)),
        ("/etc/ssl/berth/key.pem", str(key)),
        ("127.0.0.1:8000", f"127.0.0.1:{door}"),
    ):
        text = text.replace(ours, here)
    return text


PROXIES = {"nginx": nginx, "caddy": caddy}


@pytest.fixture(scope="module", params=sorted(PROXIES))
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    if shutil.which("curl") is None or "HTTP2" not in subprocess.check_output(["curl", "-V"], text=True):
        pytest.skip("no curl here speaks HTTP/2")
    if request.param == "nginx" and (shutil.which("nginx") is None or os.geteuid() != 0):
        pytest.skip("nginx is not here, or cannot be told as which user to run")
    folder = tmp_path_factory.mktemp(request.param)
    authority = Authority(folder / "authority")
    issued = authority.issue("proxy", HOST)
    (folder / "door").mkdir()
    with started(
        folder / "door", https=True, trusted_proxies=["127.0.0.1"], certificates=authority.front_door()
    ) as stack:
        port = free_port()
        argv, variables = PROXIES[request.param](
            folder, port, issued.certificate, issued.key, stack.proxy_port
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with running(argv, log=folder / "proxy.log", cwd=folder):
                found = Front(stack, port, authority.path)
                eventually(lambda: _listens(port))
                yield found


def _listens(port: int) -> bool | None:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0 or None


@pytest.fixture
def runs(front: Front) -> Front:
    front.stack.redis.flushall()
    front.stack.portal.views = {WS_A: front.stack.view()}
    front.stack.portal.tokens = {"good": "7"}
    return front


def test_page_is_served_and_unauthorized_user_refused(runs: Front) -> None:
    for token, expected in (("good", "2 200"), ("bad", "2 401")):
        command = runs.curl("--output", "/dev/null", "--write-out", SAID, token=token)
        assert subprocess.check_output(command, text=True, timeout=60) == expected


def test_upload_is_streamed(runs: Front) -> None:
    sizes: list[int] = []

    async def takes(scope: Any, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            size += len(message["body"])
            if not message.get("more_body"):
                break
        sizes.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"taken "})

    with runs.stack.app(takes) as name:
        workspace_views.store_view(runs.stack.redis, runs.stack.view(socket=name, endpoint="", revision=2))
        command = runs.curl("--upload-file", "-", "--write-out", SAID)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as curl:
            said, _ = curl.communicate(bytes(UPLOAD_BYTES), timeout=120)
    assert said == b"taken 2 200" and sizes == [UPLOAD_BYTES]


@pytest.mark.thorough("waits for a stream twice; `make test` cuts it in test_streams")
def test_stream_is_unbuffered_and_cut_when_access_ends(runs: Front) -> None:
    async def ticking(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
            await asyncio.sleep(0.1)

    with runs.stack.app(ticking, 3) as name:
        workspace_views.store_view(runs.stack.redis, runs.stack.view(socket=name, endpoint="", revision=3))
        command = runs.curl("--no-buffer", "--header", "Accept: text/event-stream", path="/ticks")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
            assert curl.stdout is not None
            try:
                assert curl.stdout.readline() == b"data: x\n"
                del runs.stack.portal.tokens["good"]
                # The stream would never end: its end is the proof.
                ended = threading.Thread(target=curl.stdout.read)
                ended.start()
                ended.join(60)
                assert not ended.is_alive()
            finally:
                curl.kill()


async def test_websocket_works_beside_http2(runs: Front) -> None:
    trusted = ssl.create_default_context(cafile=str(runs.authority))
    headers = {"Authorization": "Bearer good"}
    place = {"host": "127.0.0.1", "port": runs.port, "server_hostname": HOST, "ssl": trusted}
    async with connect(f"wss://{HOST}/x", additional_headers=headers, **place) as channel:
        await channel.recv()
        await channel.send("hello")
        assert await asyncio.wait_for(channel.recv(), 20) == "hello"
