"""The egress proxy with a host list: parsing, forwarding and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioning import egress_proxy
from provisioning.drivers.local.network import addresses_here
from provisioning.egress_proxy import EgressProxy, ProxyRequestRefused, ProxyRules, host_rule, request_of

TUNNELLED = b"HTTP/1.1 200 Connection established\r\n\r\n"


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "host", "port", "covered"),
    [
        ("index.example", "index.example", 443, True),
        ("index.example", "index.example", 80, True),
        ("index.example", "index.example", 22, False),
        ("index.example", "evil-index.example", 443, False),
        ("index.example", "index.example.evil.example", 443, False),
        ("Index.Example", "index.example", 443, True),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("git.example.org:22", "git.example.org", 22, True),
        ("git.example.org:22", "git.example.org", 443, False),
    ],
)
def test_rule_covers_hosts_and_ports(rule: str, host: str, port: int, covered: bool) -> None:
    assert host_rule(rule).covers(host, port) is covered


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "org", "*.*.org", "a..b", "a b.org", "10.0.0.1", "1.2.3", "[::1]", "x.org:0",
     "x.org:65536", "x.org:https", "-x.org", "x.org/", "http://x.org", "ü.org", "a." + "b" * 64,
     "\nx.org y", ".x.org"],
)  # fmt: skip
def test_invalid_host_is_refused_as_a_rule(text: str) -> None:
    with pytest.raises(ValueError):
        host_rule(text)


def test_rule_keeps_its_text() -> None:
    assert [str(host_rule(text)) for text in ("a.org", "*.a.org", "*.a.org:8443")] == [
        "a.org",
        "*.a.org",
        "*.a.org:8443",
    ]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1",
     "192.168.1.1", "224.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
     "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "64:ff9b::a00:1", "2002:a00:1::",
     "2001:0:a00:1::", "", "index.example"],
)  # fmt: skip
def test_blocked_addresses_are_never_permitted(address: str) -> None:
    assert not ProxyRules(()).permits(address)


def test_public_and_opened_networks_are_permitted_but_never_this_machine() -> None:
    opened = ProxyRules(
        (), networks=tuple(map(ipaddress.ip_network, ("10.1.0.0/16", "127.0.0.0/8", "0.0.0.0/0")))
    )
    assert ProxyRules(()).permits("93.184.216.34") and ProxyRules(()).permits("2606:2800:220:1::1")
    assert opened.permits("10.1.2.3") and opened.permits("::ffff:10.1.2.3")
    assert not opened.permits("127.0.0.1")
    assert addresses_here() and not any(opened.permits(address) for address in addresses_here())
    assert not ProxyRules((), here=frozenset({"93.184.216.34"})).permits("93.184.216.34")


# --- request heads --------------------------------------------------------------------------------


def head(first: str, *fields: str) -> bytes:
    return "\r\n".join((first, *fields)).encode("latin-1")


def test_connect_request_is_parsed() -> None:
    request = request_of(head("CONNECT Index.Example.:443 HTTP/1.1", "Host: elsewhere:443"))
    assert (request.host, request.port, request.tunnel) == ("index.example", 443, True)
    assert request_of(b"CONNECT [2606::1]:443 HTTP/1.1").host == "2606::1"


def test_request_is_rewritten() -> None:
    request = request_of(
        head(
            "GET HTTP://A.org?q HTTP/1.0", "Host: b.org", "Connection: keep-alive, X-Gone", "X-Gone: 1",
            "Proxy-Authorization: secret", "Upgrade: h2c", "Accept: */*",
        )
    )  # fmt: skip
    assert (request.host, request.port, request.body) == ("a.org", 80, 0)
    assert request.head == b"GET /?q HTTP/1.1\r\nhost: A.org\r\naccept: */*\r\nconnection: close\r\n\r\n"


def test_content_length_of_a_request_is_parsed() -> None:
    request = request_of(head("POST http://a.org:8080/x#y HTTP/1.1", "Content-Length: 5"))
    assert request.body == 5 and request.port == 8080 and b"\r\ncontent-length: 5\r\n" in request.head
    assert request.head.startswith(b"POST /x HTTP/1.1\r\nhost: a.org:8080\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"GET", b"GET / HTTP/1.1", b"GET https://a.org/ HTTP/1.1", b"GET http://a.org/ HTTP/2",
        b"GET  http://a.org/ HTTP/1.1", b"GET http://a.org/ HTTP/1.1 ", b"GET http:///x HTTP/1.1",
        b"GET http://u:p@a.org/ HTTP/1.1", b"GET http://a.org:x/ HTTP/1.1",
        b"GET http://a.org:99999/ HTTP/1.1",
        b"GET http://a.org/\xff HTTP/1.1", b"GET http://a.org/\tb HTTP/1.1", b"CONNECT a.org HTTP/1.1",
        b"CONNECT a.org:443/x HTTP/1.1", b"CONNECT a.org:0 HTTP/1.1", b"CONNECT @a.org:443 HTTP/1.1",
        b"CONNECT a.org:443:443 HTTP/1.1", b"G@T http://a.org/ HTTP/1.1",
        b"GET http://a.org/ HTTP/1.1\r\nno colon", b"GET http://a.org/ HTTP/1.1\r\n folded: 1",
        b"GET http://a.org/ HTTP/1.1\r\nname : 1", b"GET http://a.org/ HTTP/1.1\r\nx: a\nHost: b",
        b"GET http://a.org/ HTTP/1.1\r\nx: a\rb", b"GET http://a.org/ HTTP/1.1\r\nx: a\0b",
        b"POST http://a.org/ HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: identity",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: +5",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: 5, 5",
        b"POST http://a.org/ HTTP/1.1\r\nContent-Length: ",
    ],
)  # fmt: skip
def test_ambiguous_requests_are_refused(data: bytes) -> None:
    with pytest.raises(ProxyRequestRefused):
        request_of(data)


# --- forwarding -----------------------------------------------------------------------------------


@dataclass
class Server:
    """A server on this machine that records received data and answers each connection once."""

    answer: Callable[[socket.socket], None]
    seen: list[bytes] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with client:
            self.answer(client)


@dataclass
class Running:
    """A proxy on a Unix socket in a thread; `names` resolves host names."""

    path: Path
    names: dict[str, list[str]]
    asked: list[str]

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(20)
        client.connect(str(self.path))
        return client

    def say(self, data: bytes, *, end: bool = False) -> bytes:
        """Send data. Returns everything received until the proxy closes."""
        with self.connect() as client:
            client.sendall(data)
            if end:
                client.shutdown(socket.SHUT_WR)
            return read_all(client)


def read_all(client: socket.socket) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            data = client.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            return b"".join(parts)
        parts.append(data)


@pytest.fixture
def proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Running]:
    """`request.param` has settings of the proxy."""
    names: dict[str, list[str]] = {}
    asked: list[str] = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    path = tmp_path / "proxy.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    ports = range(1024, 65536)
    rules = ProxyRules(
        tuple(egress_proxy.HostRule(name, False, tuple(ports)) for name in ("good.example", "other.example"))
    )
    made = EgressProxy(rules, **getattr(request, "param", {}))
    loop = asyncio.new_event_loop()
    serving: list[asyncio.Task[None]] = []

    def run() -> None:
        asyncio.set_event_loop(loop)
        serving.append(loop.create_task(made.serve(listener)))
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving[0])
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield Running(path, names, asked)
    loop.call_soon_threadsafe(lambda: serving[0].cancel())
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the loopback, which is blocked otherwise, for test servers."""
    monkeypatch.setattr(ProxyRules, "permits", lambda _self, address: address == "127.0.0.1")


def echo(client: socket.socket) -> None:
    while data := client.recv(65536):
        client.sendall(data)


@pytest.mark.usefixtures("to_this_machine")
def test_tunnel_carries_data_both_ways(proxy: Running) -> None:
    server = Server(echo)
    proxy.names["good.example"] = ["127.0.0.1"]
    data = os.urandom(3_000_000)
    with proxy.connect() as client:
        client.sendall(f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\n".encode() + b"early")

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_all(client) == TUNNELLED + b"early" + data
        sender.join()


@pytest.mark.usefixtures("to_this_machine")
def test_connection_is_closed_after_one_request(proxy: Running) -> None:
    """A second request on the same connection is not forwarded."""
    seen: list[bytes] = []

    def answer(client: socket.socket) -> None:
        client.settimeout(20)
        data = b""
        while not data.endswith(b"12345"):
            data += client.recv(65536)
        client.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            data += client.recv(65536)
        seen.append(data)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    server = Server(answer)
    proxy.names["good.example"] = ["127.0.0.1"]
    smuggled = b"GET http://bad.example/ HTTP/1.1\r\nHost: bad.example\r\n\r\n"
    first = f"POST http://good.example:{server.port}/ HTTP/1.1\r\nHost: bad.example\r\nContent-Length: 5"
    assert proxy.say(first.encode() + b"\r\n\r\n12345" + smuggled).endswith(b"\r\n\r\nok")
    (got,) = seen
    assert got.endswith(b"\r\n\r\n12345") and b"bad.example" not in got
    assert server.connections == 1


@pytest.mark.parametrize(
    "target",
    ["bad.example:443", "good.example:22", "good.example.bad.example:443", "93.184.216.34:443",
     "127.0.0.1:8443", "[::1]:8443", "[::ffff:127.0.0.1]:8443", "169.254.169.254:80", "localhost:8443",
     "2130706433:8443", "0x7f.1:8443", "127.1:8443"],
)  # fmt: skip
def test_unlisted_hosts_are_not_resolved_or_reached(proxy: Running, target: str) -> None:
    proxy.names.update({"bad.example": ["93.184.216.34"], "good.example": ["93.184.216.34"]})
    assert proxy.say(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")
    assert proxy.say(f"GET http://{target}/ HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 403 ")
    assert proxy.asked == []


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"])
def test_host_resolving_to_a_blocked_address_is_refused(proxy: Running, address: str) -> None:
    server = Server(echo)
    proxy.names["good.example"] = [address]
    assert proxy.say(f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\n".encode()).startswith(
        b"HTTP/1.1 403 "
    )
    assert server.connections == 0


def test_host_is_resolved_once_and_the_checked_address_used(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: a name server with a different second answer is queried only once."""
    server = Server(echo)
    answers = [["203.0.113.5"], ["127.0.0.1"], ["127.0.0.1"]]
    asked = []

    def resolve(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[len(asked) - 1][0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(egress_proxy, "CONNECT_TIMEOUT_S", 0.2)
    # A documentation address without a server; the loopback of the second answer is never tried.
    said = proxy.say(f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 502 ") and asked == ["good.example"] and server.connections == 0


@pytest.mark.usefixtures("to_this_machine")
def test_permitted_addresses_are_tried_in_turn(proxy: Running) -> None:
    server = Server(echo)
    proxy.names["good.example"] = ["10.0.0.1", "127.0.0.1"]
    said = proxy.say(f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\nx".encode(), end=True)
    assert said == TUNNELLED + b"x"


def test_unknown_host_and_unreachable_server_return_502(proxy: Running, to_this_machine: None) -> None:
    assert proxy.say(b"CONNECT good.example:8443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 502 ")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    proxy.names["good.example"] = ["127.0.0.1"]
    assert proxy.say(f"CONNECT good.example:{port} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 502 ")


def test_oversized_head_is_refused(proxy: Running) -> None:
    said = proxy.say(b"CONNECT good.example:8443 HTTP/1.1\r\nx: " + b"a" * 60_000)
    assert said.startswith(b"HTTP/1.1 431 ") or said == b""


@pytest.mark.parametrize("proxy", [{"head_timeout_s": 0.2}], indirect=True)
def test_incomplete_head_times_out(proxy: Running) -> None:
    assert proxy.say(b"CONNECT good") == b""


@pytest.mark.usefixtures("to_this_machine")
@pytest.mark.parametrize("proxy", [{"idle_timeout_s": 2}], indirect=True)
def test_idle_tunnel_is_closed(proxy: Running) -> None:
    server = Server(echo)
    proxy.names["good.example"] = ["127.0.0.1"]
    assert proxy.say(f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\nx".encode()) == TUNNELLED + b"x"


@pytest.mark.usefixtures("to_this_machine")
@pytest.mark.parametrize("proxy", [{"max_connections": 2}], indirect=True)
def test_number_of_connections_is_limited_and_the_next_waits(proxy: Running) -> None:
    server = Server(echo)
    proxy.names["good.example"] = ["127.0.0.1"]
    ask = f"CONNECT good.example:{server.port} HTTP/1.1\r\n\r\n".encode()
    held = [proxy.connect() for _ in range(2)]
    for client in held:
        client.sendall(ask)
        assert client.recv(100) == TUNNELLED
    with proxy.connect() as third:
        third.sendall(ask)
        third.settimeout(0.3)
        with pytest.raises(TimeoutError):
            third.recv(100)
        held.pop().close()
        third.settimeout(20)
        assert third.recv(100) == TUNNELLED
    held.pop().close()


def test_proxy_program_ends_with_the_watched_process(tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as listener, subprocess.Popen(["sleep", "60"]) as watched:
        listener.bind(str(path))
        listener.listen(8)
        pidfd = os.pidfd_open(watched.pid)
        hosts: list[str] = ["good.example"]
        plan = json.dumps({"listener": listener.fileno(), "hosts": hosts, "networks": [], "watched": pidfd})
        program = [sys.executable, "-I", "-S", egress_proxy.__file__]
        with subprocess.Popen(
            program, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(listener.fileno(), pidfd)
        ) as process:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(plan.encode())
            process.stdin.close()
            listener.close()
            os.close(pidfd)
            for _ in range(2):
                said = Running(path, {}, []).say(b"CONNECT 10.0.0.1:443 HTTP/1.1\r\n\r\n")
                assert said.startswith(b"HTTP/1.1 403 Forbidden\r\n")
            watched.send_signal(signal.SIGKILL)
            assert process.wait(20) == 0
            assert process.stderr.read() == b"refused: 10.0.0.1:443 is not on the list of allowed hosts\n"
