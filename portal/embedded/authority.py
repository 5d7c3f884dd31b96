"""Berth's own certificates: an authority, the front door, the gateway of a node.

The authority's key is thrown away once it has signed: nobody can make another certificate that the gateway
would believe. All are made anew together when one is missing or about to expire.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.environment import write_file
from provisioning.node.gateway import NODE_NAME, Certificates

DAYS = 3650
RENEW_BEFORE_DAYS = 90
FRONT_NAME = "front-door.berth.internal"


@dataclass(frozen=True, slots=True)
class Issued:
    """PEM files: what the front door shows to nodes, and what a node's gateway shows to it."""

    front: Certificates
    node: Certificates


def ensure(folder: Path) -> Issued:
    """The certificates below `folder`, made where they are missing or due. Raises `OSError`."""
    authority = folder / "authority.pem"
    issued = Issued(
        front=Certificates(authority, folder / "front-door.pem", folder / "front-door.key"),
        node=Certificates(authority, folder / "node.pem", folder / "node.key"),
    )
    if not _good(issued):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(issued)
    return issued


def _good(issued: Issued) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    latest = dt.datetime.now(dt.UTC) + dt.timedelta(days=RENEW_BEFORE_DAYS)
    try:
        authority = x509.load_pem_x509_certificate(issued.front.authority.read_bytes())
        for pair in (issued.front, issued.node):
            certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
            certificate.verify_directly_issued_by(authority)
            if certificate.not_valid_after_utc < latest or not pair.key.stat().st_size:
                return False
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    return True


def _make(issued: Issued) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = dt.datetime.now(dt.UTC)
    pem = serialization.Encoding.PEM

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def certificate(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("Berth"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=DAYS))
        )

    signer = ec.generate_private_key(ec.SECP256R1())
    authority = (
        certificate("Berth", signer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    for pair, name, usage in (
        (issued.front, FRONT_NAME, ExtendedKeyUsageOID.CLIENT_AUTH),
        (issued.node, NODE_NAME, ExtendedKeyUsageOID.SERVER_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            certificate(name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
            .sign(signer, hashes.SHA256())
        )
        plain = serialization.NoEncryption()
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        write_file(pair.key, secret.decode(), mode=0o600)
        write_file(pair.certificate, signed.public_bytes(pem).decode(), mode=0o600)
    # Last: what was made halfway is not taken for good.
    write_file(issued.front.authority, authority.public_bytes(pem).decode(), mode=0o600)
