"""The client's replacement for resolvers that do not know `*.localhost`."""

from __future__ import annotations

import httpx
import pytest
from gateway_support import WS_A

from portal.cli.loopback import Connection, address_of


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("localhost", "127.0.0.1"),
        (f"{WS_A}.localhost", "127.0.0.1"),
        (f"{WS_A}.LOCALHOST.", "127.0.0.1"),
        (f"{WS_A}.example.org", f"{WS_A}.example.org"),
        ("notlocalhost", "notlocalhost"),
    ],
)
def test_only_localhost_names_resolve_to_this_machine(host: str, address: str) -> None:
    assert address_of(host) == address


def sent_by(base_url: str) -> httpx.Request:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(302, headers={"location": "http://evil.example/"})

    with Connection(base_url, "secret", transport=httpx.MockTransport(handler)) as connection:
        assert connection.http.get("/api").status_code == 302
    assert len(requests) == 1, "redirects are not followed"
    return requests[0]


def test_host_header_is_kept_when_the_address_is_replaced() -> None:
    request = sent_by(f"http://{WS_A}.localhost:8000")
    assert (request.url.host, request.url.port) == ("127.0.0.1", 8000)
    assert request.headers["host"] == f"{WS_A}.localhost:8000"
    assert request.headers["authorization"] == "Bearer secret"


def test_other_hosts_are_unchanged() -> None:
    request = sent_by(f"https://{WS_A}.example.org/lab")
    assert request.url == f"https://{WS_A}.example.org/api"


def test_websocket_target_of_an_address() -> None:
    with Connection(f"http://{WS_A}.localhost:8000", "secret") as connection:
        target = connection.websocket("/api?x=1")
    assert target.uri == f"ws://{WS_A}.localhost:8000/api?x=1"
    assert (target.host, target.port) == ("127.0.0.1", 8000)
    assert "secret" not in repr(target)
    with Connection(f"https://{WS_A}.example.org", "secret") as connection:
        target = connection.websocket("/")
    assert (target.uri, target.port) == (f"wss://{WS_A}.example.org/", 443)


@pytest.mark.parametrize("url", ["", "ws-1.localhost", "ftp://x"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http or https"):
        Connection(url, "secret")
