"""Certificates of receivers: trusted authority and matching name."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from portal.common.outgoing import client


class Receiver(BaseHTTPRequestHandler):
    received: list[bytes]

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def certificate(folder: Path, name: x509.GeneralName) -> Path:
    """A file with key and self-signed certificate for `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "receiver.pem"
    path.write_bytes(key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(params=["own", "another"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path, list[bytes], bool]]:
    """A TLS receiver: its URL, certificate, requests, and whether the certificate matches its name."""
    fits = request.param == "own"
    name = x509.IPAddress(ipaddress.ip_address("127.0.0.1")) if fits else x509.DNSName("other.example.org")
    path = certificate(tmp_path, name)
    handler = type("Handler", (Receiver,), {"received": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    # A handshake refused by the client is no server error.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/", path, handler.received, fits
    server.shutdown()
    server.server_close()
    thread.join()


def test_unknown_certificate_is_refused_before_any_data(served, settings):
    url, _path, received, _fits = served
    settings.BERTH_OUTGOING_ALLOW = ["127.0.0.0/8"]
    with pytest.raises(client.NoAnswer) as failed:
        client.post(url, b"secret", {}, timeout_s=10)
    assert failed.value.failure is client.Failure.TLS
    assert received == []


def test_site_certificate_is_trusted_for_its_own_name_only(served, settings):
    url, path, received, fits = served
    settings.BERTH_OUTGOING_ALLOW, settings.BERTH_OUTGOING_CA_FILE = ["127.0.0.0/8"], str(path)
    if fits:
        assert client.post(url, b"secret", {}, timeout_s=10).status == 204
        assert received == [b"secret"]
    else:
        with pytest.raises(client.NoAnswer) as failed:
            client.post(url, b"secret", {}, timeout_s=10)
        assert failed.value.failure is client.Failure.TLS
        assert received == []
