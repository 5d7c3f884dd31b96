"""Berth's certificate authority. Independent of Django, because the launcher uses it too.

Names in certificates are chosen by Berth, never taken from a request. A node's certificate is for
`node:<name>` and serves as client certificate to the control plane and as server certificate to the front
door.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

DAYS = 3650
NODE_DAYS = 90
FRONT_NAME = "front-door.berth.internal"
PORTAL_NAME = "portal.berth.internal"
"""Server name of the nodes' door, independent of the address that machines connect to."""
NODE_SUFFIX = ".node.berth.internal"
AUTHORITY_FILE, AUTHORITY_KEY_FILE = "authority.pem", "authority.key"
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
MAX_CSR = 8192


class BadRequest(Exception):
    """The certificate request is malformed or cannot be signed."""


class NoAuthority(Exception):
    """The authority's key or certificate cannot be read."""


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """A certificate in PEM, its serial number in decimal, and its expiry."""

    pem: str
    serial: str
    expires_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls) -> Authority:
        """Create a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            _builder("Berth", key.public_key(), _common_name("Berth"), DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Load the authority from `folder`. Raises `NoAuthority`."""
        try:
            certificate = x509.load_pem_x509_certificate((folder / AUTHORITY_FILE).read_bytes())
            key = serialization.load_pem_private_key((folder / AUTHORITY_KEY_FILE).read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise NoAuthority(str(folder)) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise NoAuthority(f"{folder}: the key is another certificate's")
        return cls(certificate, key)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        """The private key, in PEM."""
        return pem_of(self.key)

    @property
    def digest(self) -> str:
        """SHA-256 of the certificate's DER, in hexadecimal. Machines pin it."""
        return digest_of(self.certificate)

    def issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        *,
        name: str,
        host: str,
        usages: Sequence[ObjectIdentifier],
        days: int = DAYS,
    ) -> SignedCertificate:
        """Issue a certificate for `name`, with the DNS name `host`."""
        certificate = (
            _builder(name, public_key, self.certificate.subject, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return SignedCertificate(pem, str(certificate.serial_number), certificate.not_valid_after_utc)

    def sign_node(self, csr: str, name: str) -> SignedCertificate:
        """Sign a PEM certificate request for the node `name`. Raises `BadRequest`.

        Only the key and its proof of possession are used from the request.
        """
        if len(csr) > MAX_CSR:
            raise BadRequest("it is too long")
        try:
            request = x509.load_pem_x509_csr(csr.encode())
            key = request.public_key()
            valid = request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
            raise BadRequest("it cannot be read") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise BadRequest("its key is not on the curve P-256")
        if not valid:
            raise BadRequest("its signature is not valid")
        if key == self.key.public_key():
            raise BadRequest("its key is that of the authority")
        return self.issue(
            key, name=f"node:{name}", host=host_of(name), usages=(SERVER, CLIENT), days=NODE_DAYS
        )


def host_of(node_name: str) -> str:
    """Return the server name of a node's gateway."""
    return f"{node_name}{NODE_SUFFIX}"


def digest_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate's DER, in hexadecimal."""
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def pem_of(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key in PEM, unencrypted."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=days))
    )
