"""A node's own keys: generated here, never sent."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from provisioning import signing

_PEM = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class NewKeys:
    """PEM texts, and the message key in hexadecimal; only `csr` and `signing_public` are sent."""

    key: str = field(repr=False)
    csr: str
    signing_key: str = field(repr=False)
    signing_public: str


def make(name: str) -> NewKeys:
    """Generate keys for the node `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node:{name}")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    signing_key = secrets.token_hex(32)
    return NewKeys(
        key=key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
        csr=csr.public_bytes(_PEM).decode(),
        signing_key=signing_key,
        signing_public=signing.public_text(signing_key),
    )


def digest_of(authority: str) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal. Raises `ValueError` for an invalid certificate."""
    certificate = x509.load_pem_x509_certificate(authority.encode())
    return certificate.fingerprint(hashes.SHA256()).hex()


def check(certificate: str, key: str, authority: str) -> None:
    """Raise `ValueError` unless the authority issued the certificate for this key."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
        parsed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        own_key = serialization.load_pem_private_key(key.encode(), None)
    except Exception as error:
        # Invalid signatures and algorithms raise various exceptions.
        raise ValueError(f"the certificate cannot be used: {error or type(error).__name__}") from error
    if parsed.public_key() != own_key.public_key():
        raise ValueError("the certificate belongs to another key")


def validity(certificate: str) -> tuple[dt.datetime, dt.datetime]:
    """Return the start and end of a certificate's validity. Raises `ValueError`."""
    parsed = x509.load_pem_x509_certificate(certificate.encode())
    return parsed.not_valid_before_utc, parsed.not_valid_after_utc
