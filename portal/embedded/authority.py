"""Berth's own certificates on this machine: authority, front door, and the nodes' doors.

The authority's key is kept, because it signs certificates of joining machines
(docs/adr/0030-joining-machines.md). If the authority or its key is missing, all certificates are renewed;
otherwise only missing or expiring ones.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from portal.fleet.machines import certificates
from portal.fleet.machines.certificates import Authority, NoAuthority
from provisioning.node_gateway import Certificates
from provisioning.service.files import write_file

RENEW_BEFORE_DAYS = 90
FRONT_NAME = certificates.FRONT_NAME


@dataclass(frozen=True, slots=True)
class IssuedCertificates:
    """PEM files that the front door and the doors present to nodes."""

    front: Certificates
    door: Certificates


def ensure(folder: Path) -> IssuedCertificates:
    """Return the certificates below `folder`. Creates missing and renews expiring ones. Raises `OSError`."""
    path = folder / certificates.AUTHORITY_FILE
    issued = IssuedCertificates(
        front=Certificates(path, folder / "front-door.pem", folder / "front-door.key"),
        door=Certificates(path, folder / "nodes-door.pem", folder / "nodes-door.key"),
    )
    latest = dt.datetime.now(dt.UTC) + dt.timedelta(days=RENEW_BEFORE_DAYS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(folder, latest)
    for pair, name, usage in (
        (issued.front, FRONT_NAME, certificates.CLIENT),
        (issued.door, certificates.PORTAL_NAME, certificates.SERVER),
    ):
        if not _is_valid(pair, authority, latest):
            key = ec.generate_private_key(ec.SECP256R1())
            signed = authority.issue(key.public_key(), name=name, host=name, usages=(usage,))
            write_file(pair.key, certificates.pem_of(key), mode=0o600)
            write_file(pair.certificate, signed.pem, mode=0o600)
    return issued


def copy_certificates(pair: Certificates, folder: Path) -> Certificates:
    """Copy a pair and the authority's certificate to `folder`, without the authority's key.

    Raises `OSError`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    copies = Certificates(*(folder / path.name for path in (pair.authority, pair.certificate, pair.key)))
    for path, copy in (
        (pair.authority, copies.authority),
        (pair.certificate, copies.certificate),
        (pair.key, copies.key),
    ):
        write_file(copy, path.read_text(), mode=0o600)
    return copies


def _authority(folder: Path, latest: dt.datetime) -> Authority:
    try:
        loaded = Authority.load(folder)
        if loaded.certificate.not_valid_after_utc >= latest:
            return loaded
    except NoAuthority:
        pass
    created = Authority.make()
    write_file(folder / certificates.AUTHORITY_KEY_FILE, created.key_pem, mode=0o600)
    # Write the certificate last: one without its key is recreated.
    write_file(folder / certificates.AUTHORITY_FILE, created.pem, mode=0o600)
    return created


def _is_valid(pair: Certificates, authority: Authority, latest: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        certificate.verify_directly_issued_by(authority.certificate)
        return certificate.not_valid_after_utc >= latest and _is_key_of(pair.key, certificate)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False


def _is_key_of(path: Path, certificate: x509.Certificate) -> bool:
    return load_pem_private_key(path.read_bytes(), None).public_key() == certificate.public_key()
