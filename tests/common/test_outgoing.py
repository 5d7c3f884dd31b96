"""Outgoing requests: allowed addresses, valid URLs, encrypted secrets and signatures."""

from __future__ import annotations

import ipaddress
import socket
from datetime import UTC, datetime

import pytest

from portal.common import encrypted_fields, signatures
from portal.common.outgoing import addresses, client
from portal.common.outgoing.addresses import AddressPolicy, AddressRefused, Refusal
from tests.receivers import receiver

INTERNAL = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "2002:7f00:1::1", "2002:a00:1::", "64:ff9b:1::1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "2a00:1450:4001::1"]


@pytest.mark.parametrize("text", INTERNAL)
def test_internal_addresses_are_refused(text):
    with pytest.raises(AddressRefused) as refused:
        AddressPolicy().check(ipaddress.ip_address(text))
    assert refused.value.refusal is Refusal.INTERNAL


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed_with_tls_only(text):
    AddressPolicy().check(ipaddress.ip_address(text))
    with pytest.raises(AddressRefused) as refused:
        AddressPolicy().check(ipaddress.ip_address(text), plain=True)
    assert refused.value.refusal is Refusal.PLAIN


def test_allowed_networks_of_the_site():
    policy = AddressPolicy.parse(["10.1.0.0/16", "fd00::/8"])
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1"):
        policy.check(ipaddress.ip_address(text), plain=True)
    for text in ("10.2.0.1", "127.0.0.1", "::1"):
        with pytest.raises(AddressRefused):
            policy.check(ipaddress.ip_address(text))
    with pytest.raises(ValueError, match="host bits"):
        AddressPolicy.parse(["10.1.2.3/16"])


def test_one_internal_address_among_several_refuses_all(monkeypatch):
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(AddressRefused):
        addresses.resolve("example.org", 443, AddressPolicy(), timeout_s=5)


def test_unresolvable_name_is_refused_like_an_internal_one():
    with pytest.raises(AddressRefused) as refused:
        addresses.resolve("nonesuch.invalid", 443, AddressPolicy(), timeout_s=20)
    assert refused.value.refusal is Refusal.INTERNAL


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "017700000001", "[::1]", "localhost"])
def test_other_notations_of_loopback_are_refused(host):
    url = f"https://{host}:9/"
    with pytest.raises(client.NoAnswer) as refused:
        client.post(url, b"", {}, timeout_s=10)
    assert refused.value.failure is client.Failure.REFUSED


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://example.org/x", None),
        ("http://example.org/x", None),
        ("ftp://example.org/", client.UrlProblem.SCHEME),
        ("file:///etc/passwd", client.UrlProblem.SCHEME),
        ("gopher://127.0.0.1/", client.UrlProblem.SCHEME),
        ("https://ada:secret@example.org/", client.UrlProblem.CREDENTIALS),
        ("https://@example.org/", client.UrlProblem.CREDENTIALS),
        ("https://127.0.0.1/", client.UrlProblem.INTERNAL),
        ("https://[::ffff:10.0.0.1]/", client.UrlProblem.INTERNAL),
        ("http://8.8.8.8/", client.UrlProblem.SCHEME),
        ("https:///x", client.UrlProblem.NO_URL),
        ("https://example.org:99999/", client.UrlProblem.NO_URL),
        ("https://[::1/", client.UrlProblem.NO_URL),
        ("https://example.org/\r\nHost: x", client.UrlProblem.NO_URL),
        ("https://example.org/a b", client.UrlProblem.NO_URL),
        ("https://exämple.org/", client.UrlProblem.NO_URL),
        ("https://example.org/" + "x" * 1000, client.UrlProblem.NO_URL),
        ("", client.UrlProblem.NO_URL),
    ],
)
def test_valid_urls(url, problem):
    found = client.url_problem(url)
    assert found == problem or (problem is client.UrlProblem.NO_URL and found is not None)


def test_plain_http_receiver_is_refused_where_tls_is_expected(settings):
    """Certificates are tested in `test_outgoing_tls`."""
    settings.BERTH_OUTGOING_ALLOW = ["127.0.0.0/8"]
    with receiver() as there, pytest.raises(client.NoAnswer) as failed:
        client.post(there.url.replace("http:", "https:"), b"secret", {}, timeout_s=10)
    assert failed.value.failure in (client.Failure.TLS, client.Failure.CONNECTION)
    assert there.requests == []


def test_site_settings_may_use_any_address():
    with receiver() as there:
        assert client.post(there.url, b"x", {}, timeout_s=10, guarded=False).status == 200
        with pytest.raises(client.NoAnswer):
            client.post(there.url, b"x", {}, timeout_s=10)
    assert len(there.requests) == 1


# --- encrypted at rest --------------------------------------------------------------------------


def test_sealed_value_opens_only_with_its_purpose_and_key(settings):
    settings.SECRET_KEY_FALLBACKS = []
    sealed = encrypted_fields.encrypt("whsec_x", purpose="a")
    assert "whsec" not in sealed
    assert encrypted_fields.decrypt(sealed, purpose="a") == "whsec_x"
    for purpose, key, fallbacks in (("b", settings.SECRET_KEY, []), ("a", "another", [])):
        settings.SECRET_KEY, before = key, settings.SECRET_KEY
        settings.SECRET_KEY_FALLBACKS = fallbacks
        with pytest.raises(encrypted_fields.Unreadable):
            encrypted_fields.decrypt(sealed, purpose=purpose)
        settings.SECRET_KEY = before
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert encrypted_fields.decrypt(sealed, purpose="a") == "whsec_x"


# --- signatures ---------------------------------------------------------------------------------


def test_signature_matches_the_vector_of_the_specification():
    """From the reference implementations of Standard Webhooks."""
    found = signatures.signed_headers(
        b'{"test": 2432232314}',
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        at=datetime.fromtimestamp(1614265330, UTC),
        signing_secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_secrets_are_long_and_unique():
    first, second = signatures.new_secret(), signatures.new_secret()
    assert first != second
    assert first.startswith("whsec_")
    assert len(first) > 40
