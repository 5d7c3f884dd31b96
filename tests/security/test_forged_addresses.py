"""Attack: forged client addresses in headers, to guess passwords without a lockout."""

from __future__ import annotations

import ipaddress
from io import BytesIO
from typing import Any

import pytest
from django.test import Client, RequestFactory

from portal.common import front_door
from portal.common.serving import BUFFERED_BYTES, SyncHandler
from portal.common.system_checks import check_unauthenticated_proxy
from portal.embedded.proxy import MAX_BODY_BYTES
from tests.factories import PASSWORD

GATEWAY_SECRET = "a gateway secret for tests alone"
PROXY_SECRET = "what the proxy says of itself"
TOKEN = front_door.token_of(GATEWAY_SECRET)


def networks(named: list[str]) -> tuple[front_door.Network, ...]:
    return tuple(ipaddress.ip_network(name) for name in named if name)


def client(
    peer: str,
    forwarded_for: str,
    *,
    token: str = TOKEN,
    proxy: str = "",
    trusted: str = "",
    own: str = PROXY_SECRET,
) -> str:
    return front_door.client_address(
        peer,
        token=token,
        forwarded_for=forwarded_for,
        proxy_secret=proxy,
        gateway_secret=GATEWAY_SECRET,
        trusted=networks(trusted.split(",")),
        own_proxy_secret=own,
    )


@pytest.mark.parametrize(
    ("forwarded_for", "found"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::1"),
        ("", "127.0.0.1"),
        ("nonsense", "127.0.0.1"),
        ("203.0.113.7,", "127.0.0.1"),
    ],
)
def test_client_address_is_taken_from_the_front_door(forwarded_for, found):
    assert client("127.0.0.1", forwarded_for) == found


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN.upper(), TOKEN + "0", GATEWAY_SECRET, "\udcff"])
def test_other_senders_are_not_trusted(token):
    assert client("127.0.0.1", "203.0.113.7", token=token) == "127.0.0.1"
    assert client("203.0.113.9", "198.51.100.1", token=token) == "203.0.113.9"


def test_without_a_gateway_secret_no_header_is_trusted():
    assert not front_door.is_front_door(front_door.token_of(""), "")


@pytest.mark.parametrize(
    ("forwarded_for", "proxy", "trusted", "found"),
    [
        # A proxy on another machine is recognized by its address.
        ("203.0.113.7, 198.18.5.1", "", "198.18.5.1", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7, 198.18.5.1", "", "198.18.5.0/24", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7, 198.18.5.2, 198.18.5.1", "", "198.18.5.0/24", "203.0.113.7"),
        ("203.0.113.7, 198.18.5.9", "", "198.18.5.1", "198.18.5.9"),
        ("nonsense, 198.18.5.1", "", "198.18.5.1", "198.18.5.1"),
        # A proxy on this machine needs the secret.
        ("203.0.113.7, 127.0.0.1", PROXY_SECRET, "127.0.0.1", "203.0.113.7"),
        ("203.0.113.7, 127.0.0.1", "", "127.0.0.1", "127.0.0.1"),
        ("203.0.113.7, 127.0.0.1", "a guess of some length", "127.0.0.1", "127.0.0.1"),
        ("203.0.113.7, ::1", "", "::1", "::1"),
        ("203.0.113.7, 127.1.2.3", "", "127.0.0.0/8", "127.1.2.3"),
        ("203.0.113.7, 127.0.0.1", "", "0.0.0.0/0", "127.0.0.1"),
        # The secret is valid, but the address is not listed as a proxy.
        ("203.0.113.7, 198.18.5.9", PROXY_SECRET, "127.0.0.1", "198.18.5.9"),
    ],
)
def test_client_address_is_taken_from_a_trusted_proxy(forwarded_for, proxy, trusted, found):
    assert client("127.0.0.1", forwarded_for, proxy=proxy, trusted=trusted) == found


@pytest.mark.parametrize("own", ["", "short"])
def test_missing_or_short_secret_is_not_trusted(own):
    assert (
        client("127.0.0.1", "203.0.113.7, 127.0.0.1", proxy=own, trusted="127.0.0.1", own=own) == "127.0.0.1"
    )


def test_proxy_without_a_secret_gives_a_warning(settings):
    settings.BERTH_TRUSTED_PROXIES = networks(["127.0.0.1"])
    settings.BERTH_PROXY_SECRET = ""
    assert [found.id for found in check_unauthenticated_proxy()] == ["common.W002"]
    settings.BERTH_PROXY_SECRET = PROXY_SECRET
    assert check_unauthenticated_proxy() == []
    settings.BERTH_TRUSTED_PROXIES, settings.BERTH_PROXY_SECRET = networks(["198.18.5.1"]), ""
    assert check_unauthenticated_proxy() == []


def environ(path: str, **headers: str) -> dict[str, Any]:
    return RequestFactory().get(path, headers=headers).environ


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/agent/v1/ready", "/agent%2fv1/ready", "/agent/", "/agent%2Fv1%2Fready"])
def test_agent_requests_through_the_front_door_are_refused(path):
    statuses: list[str] = []
    handler = SyncHandler()
    for headers in ({front_door.TOKEN_HEADER: TOKEN}, {}):
        handler(environ(path, **headers), lambda status, _headers: statuses.append(status))
    assert statuses[0].startswith("404")
    # From inside, the path accepts no GET or does not exist.
    assert statuses[1].startswith("405" if path.endswith("ready") else "404")


@pytest.mark.django_db
def test_refused_body_is_drained_before_the_connection_closes():
    """Otherwise the front door, which sends the whole body, would get a reset instead of the response."""
    assert BUFFERED_BYTES == MAX_BODY_BYTES
    statuses: list[str] = []
    for headers, left in (({front_door.TOKEN_HEADER: TOKEN}, 0), ({}, BUFFERED_BYTES)):
        body = BytesIO(bytes(BUFFERED_BYTES))
        request = environ("/api/v1/workspaces", **headers)
        request |= {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(BUFFERED_BYTES), "wsgi.input": body}
        SyncHandler()(request, lambda status, _headers: statuses.append(status))
        assert len(body.read()) == left
    assert [status[:3] for status in statuses] == ["401", "401"]


@pytest.mark.django_db
def test_password_guesses_from_forty_addresses_lock_the_name(alice, settings):
    settings.BERTH_SIGN_IN_FAILURES_PER_NAME = 20
    known = Client()
    assert known.post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 302
    known.post("/sign-out/")
    statuses = [
        Client(REMOTE_ADDR=f"203.0.113.{number}")
        .post("/sign-in/", {"username": " Alice" if number % 2 else "alice", "password": f"guess {number}"})
        .status_code
        for number in range(40)
    ]
    assert statuses == [200] * 20 + [429] * 20
    elsewhere = Client(REMOTE_ADDR="198.51.100.1")
    answered = elsewhere.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    assert answered.status_code == 429
    assert answered["Retry-After"]
    # A known browser of the user is admitted, so that others cannot lock her out.
    assert known.post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 302


@pytest.mark.django_db
def test_unknown_name_is_locked_like_a_known_one(settings):
    settings.BERTH_SIGN_IN_FAILURES_PER_NAME = 3
    statuses = [
        Client(REMOTE_ADDR=f"203.0.113.{number}")
        .post("/sign-in/", {"username": "nobody", "password": "guess"})
        .status_code
        for number in range(5)
    ]
    assert statuses == [200, 200, 200, 429, 429]
