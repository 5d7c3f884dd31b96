"""A certificate authority for tests."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from provisioning.node_gateway import FRONT_DOOR_NAME, Certificates, node_name

_PEM = serialization.Encoding.PEM


class Authority:
    """`folder` contains its certificate and the certificates that it issues."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / "authority.pem"
        made = (
            self._builder("Berth", self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(made.public_bytes(_PEM))

    def front_door(self) -> Certificates:
        return self.issue(FRONT_DOOR_NAME, FRONT_DOOR_NAME)

    def node(self, name: str) -> Certificates:
        """A client and server certificate, as a joining machine gets it."""
        return self.issue(f"node:{name}", node_name(name))

    def issue(self, common_name: str, dns_name: str) -> Certificates:
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        signed = (
            self._builder(common_name, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(dns_name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._folder / f"{common_name}-{dns_name}".replace(":", "-")
        certificates = Certificates(
            self.path, stem.with_name(f"{stem.name}.pem"), stem.with_name(f"{stem.name}.key")
        )
        certificates.certificate.write_bytes(signed.public_bytes(_PEM))
        plain = serialization.NoEncryption()
        certificates.key.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain))
        return certificates

    @staticmethod
    def _builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)

        def named(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("Berth"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )
