"""A test certificate authority like the portal's for joining machines."""

from __future__ import annotations

import datetime as dt
import hashlib
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PORTAL_NAME = "portal.berth.internal"
FRONT_NAME = "front-door.berth.internal"
_PEM = serialization.Encoding.PEM


class Authority:
    """`pem` is its certificate; `issue` signs, `write` creates key and certificate files."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Berth")])
        self.certificate = (
            self._builder(self._name, self._key.public_key(), days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self.certificate.public_bytes(_PEM).decode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.certificate.public_bytes(serialization.Encoding.DER)).hexdigest()

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, days: float
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=days))
        )

    def issue(self, key: ec.EllipticCurvePublicKey, *, name: str, host: str, days: float = 90) -> str:
        """A certificate for servers and clients."""
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = (
            self._builder(subject, key, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return signed.public_bytes(_PEM).decode()

    def write(self, folder: Path, name: str, *, host: str = "", days: float = 90) -> tuple[Path, Path]:
        """Create `<name>.pem` and `<name>.key` in the folder, beside `authority.pem`."""
        key = ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "authority.pem").write_text(self.pem)
        file = name.replace(":", "-")
        certificate, secret = folder / f"{file}.pem", folder / f"{file}.key"
        certificate.write_text(self.issue(key.public_key(), name=name, host=host or name, days=days))
        secret.write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return certificate, secret
