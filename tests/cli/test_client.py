"""Error handling of the client, and connections to workspaces."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
from typing import Any

import httpx
import pytest

from portal.cli.client import BerthClient
from portal.cli.errors import CliError, Missing, NotSignedIn, RequestRejected, Unreachable


def client(answer: Any) -> BerthClient:
    return BerthClient("http://portal.example/", "berth_x", transport=httpx.MockTransport(answer))


def problem(status: int, **members: Any) -> httpx.Response:
    return httpx.Response(
        status,
        json={"status": status, "code": "some_code", "detail": "No.", **members},
        headers={"Content-Type": "application/problem+json"},
    )


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (problem(401), NotSignedIn, "No."),
        (problem(404, next_action="Look."), Missing, "No."),
        (problem(409, errors={"name": ["Taken."]}), RequestRejected, "No. name: Taken."),
        (problem(500), RequestRejected, "No."),
        (httpx.Response(502, text="Bad Gateway"), Unreachable, "does not answer (502)"),
        (httpx.Response(200, text="<html>"), Unreachable, "not as a Berth portal"),
        (httpx.Response(200, json=[]), Unreachable, "not as a Berth portal"),
        (httpx.Response(302, headers={"Location": "http://x/"}), Unreachable, "answered 302"),
        (httpx.Response(404, text="nginx"), Unreachable, "answered 404"),
    ],
)
def test_error_responses_raise_the_matching_exception(
    response: httpx.Response, error: type[CliError], words: str
) -> None:
    with client(lambda request: response) as portal, pytest.raises(error) as caught:
        portal.users.me()
    assert words in caught.value.message
    assert caught.value.next_action or error is RequestRejected


def test_rejection_has_status_code_and_request_id() -> None:
    with (
        client(lambda request: problem(409, request_id="r-1")) as portal,
        pytest.raises(RequestRejected) as caught,
    ):
        portal.workspaces.stop("x")
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (409, "some_code", "r-1")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (httpx.ConnectError("refused"), "does not answer"),
        (httpx.ReadTimeout("slow"), "did not answer in time"),
        (httpx.RemoteProtocolError("closed"), "failed: closed"),
    ],
)
def test_connection_errors_raise_unreachable(raised: Exception, words: str) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise raised

    with client(fail) as portal, pytest.raises(Unreachable, match=words):
        portal.users.me()


def test_untrusted_certificate_is_reported() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        error = httpx.ConnectError("certificate verify failed")
        error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")
        raise error

    with client(fail) as portal, pytest.raises(Unreachable) as caught:
        portal.users.me()
    assert "SSL_CERT_FILE" in caught.value.next_action


@pytest.mark.parametrize(("lost", "retries", "sent"), [(0, 1, 1), (1, 1, 2), (2, 1, 2), (1, 0, 1)])
def test_request_is_retried_with_the_same_key_after_a_lost_response(
    lost: int, retries: int, sent: int
) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) <= lost:
            raise httpx.ReadTimeout("slow")
        return httpx.Response(201, json={"id": "x"})

    expected = pytest.raises(Unreachable) if lost > retries else contextlib.nullcontext()
    with client(answer) as portal, expected:
        assert portal.workspaces.create(template="a", flavor="b", retries=retries) == {"id": "x"}
    assert len(keys) == sent and len(set(keys)) == 1 and keys[0]


def test_rejection_is_not_retried() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return problem(409)

    with client(answer) as portal, pytest.raises(RequestRejected):
        portal.workspaces.extend("x", hours=1, idempotency_key="mine")
    assert keys == ["mine"]


def test_next_links_are_followed_on_the_configured_host() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        last = "cursor" in request.url.query.decode()
        following = None if last else "http://elsewhere.example/api/v1/workspaces?cursor=abc"
        return httpx.Response(200, json={"results": [{"n": len(seen)}], "next": following})

    with client(answer) as portal:
        assert [row["n"] for row in portal.workspaces.list(owner="bob", team="")] == [1, 2]
    assert seen == [
        "http://portal.example/api/v1/workspaces?owner=bob",
        "http://portal.example/api/v1/workspaces?cursor=abc",
    ]


def test_localhost_workspace_is_reached_by_its_host_header() -> None:
    origin = "http://ws-0f.localhost:8000"

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/api/v1/"):
            return httpx.Response(200, json={"url": f"{origin}/lab"})
        return httpx.Response(
            200, json={"to": request.url.host, "host": request.headers["Host"], "path": request.url.path}
        )

    with client(answer) as portal, portal.workspaces.http_client("0f") as inside:
        assert inside.get("/api").json() == {
            "to": "127.0.0.1",
            "host": "ws-0f.localhost:8000",
            "path": "/api",
        }
        assert inside.headers["Authorization"] == "Bearer berth_x"


def test_id_cannot_change_the_request_path() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"path": request.url.raw_path.decode()})

    with client(answer) as portal:
        assert portal.workspaces.get("../teams?x")["path"] == "/api/v1/workspaces/..%2Fteams%3Fx"


def test_help_loads_neither_django_nor_httpx() -> None:
    look = (
        "import sys, portal.cli.main as cli; cli.parser(); early = set(sys.modules);"
        "import portal.cli.commands;"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "print('httpx' in early, sorted(loaded & {'django', 'rest_framework', 'celery', 'redis'}))"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout == "False []\n"
