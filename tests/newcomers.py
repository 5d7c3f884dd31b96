"""Joining machines, as the control plane sees them."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.conf import settings
from django.test import Client

from portal.embedded import authority
from portal.fleet.inventory.models import Pool
from portal.fleet.machines import door, services
from provisioning.signing import public_text
from provisioning.version import VERSION


def open_doors(settings: Any, folder: Path) -> None:
    """Configure an authority and an address for nodes."""
    authority.ensure(folder)
    settings.BERTH_TLS_DIR = folder
    settings.BERTH_NODES_ADDRESS = "berth.example.org"


def token_for(pool: Pool, actor: Any) -> str:
    return services.make_join_token(actor=actor, pool=pool).text


@dataclass
class Newcomer:
    """A machine with its keys that sends requests through the nodes' door."""

    name: str = "gpu-07"
    machine_id: str = field(default_factory=lambda: secrets.token_hex(32))
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    signing_key: str = field(default_factory=lambda: secrets.token_hex(32))
    answer: dict[str, Any] = field(default_factory=dict)
    address: str = "10.1.2.3"

    def csr(self, builder: x509.CertificateSigningRequestBuilder | None = None) -> str:
        builder = builder or x509.CertificateSigningRequestBuilder().subject_name(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def body(self, token: str, **changes: Any) -> dict[str, Any]:
        return {
            "token": token,
            "name": self.name,
            "csr": self.csr(),
            "signing_key": public_text(self.signing_key),
            "address": "",
            "gateway_port": 8646,
            "version": VERSION,
            "clock": time.time(),
            "machine_id": self.machine_id,
            "instance": secrets.token_hex(16),
        } | changes

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """A request as forwarded by the door."""
        own = {door.DOOR_HEADER: door.token_of(settings.BERTH_GATEWAY_SECRET)}
        return Client().post(
            f"/nodes/v1/{path}",
            body,
            content_type="application/json",
            REMOTE_ADDR=self.address,
            headers=own | headers,
        )

    def join(self, token: str, **changes: Any) -> Any:
        answer = self.post("join", self.body(token, **changes))
        if answer.status_code == 201:
            self.answer = answer.json()
        return answer

    @property
    def certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.answer["certificate"].encode())

    def as_node(self, path: str, body: Any, *, serial: int = 0, node: str = "") -> Any:
        """A request with its certificate, verified by the door."""
        headers = {
            door.NODE_HEADER: node or self.name,
            door.SERIAL_HEADER: str(serial or self.certificate.serial_number),
        }
        return self.post(path, body, **headers)

    def rotate(self, *, serial: int = 0) -> Any:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.signing_key = secrets.token_hex(32)
        body = {"csr": self.csr(), "signing_key": public_text(self.signing_key)}
        answer = self.as_node("rotate", body, serial=serial)
        if answer.status_code == 200:
            self.answer = answer.json()
        return answer
