"""An LDAP directory: OpenLDAP's slapd with a few users, in a folder."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PROGRAM = shutil.which("slapd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/libexec") or ""
ADMIN, ADMIN_PASSWORD = "cn=admin,dc=example,dc=org", "service-secret"
PASSWORD = "directory-password"
CONFIG = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {folder}/ca.pem
TLSCertificateKeyFile {folder}/key.pem
database mdb
suffix "dc=example,dc=org"
rootdn "{admin}"
rootpw {admin_password}
directory {folder}/data
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{admin}" read by * none
"""
PERSON = """
dn: uid={uid},ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: {uid}
cn: {name}
givenName: {first}
sn: {last}
mail: {uid}@example.org
employeeType: {kind}
userPassword: {password}
"""
PEOPLE = [
    ("nora", "Nora", "Berg", "staff"),
    ("otto", "Otto", "Haug", "disabled"),
    ("bob", "Bob", "Other", "staff"),
]


def ldif() -> str:
    parts = [
        "dn: dc=example,dc=org\nobjectClass: dcObject\nobjectClass: organization\no: Example\ndc: example\n",
        "dn: ou=people,dc=example,dc=org\nobjectClass: organizationalUnit\nou: people\n",
        "dn: ou=groups,dc=example,dc=org\nobjectClass: organizationalUnit\nou: groups\n",
    ]
    for uid, first, last, kind in PEOPLE:
        values = {"uid": uid, "first": first, "last": last, "kind": kind, "name": f"{first} {last}"}
        parts.append(PERSON.format(password=PASSWORD, **values).strip() + "\n")
    parts.append(
        "dn: cn=vision,ou=groups,dc=example,dc=org\nobjectClass: groupOfNames\ncn: vision\n"
        "member: uid=nora,ou=people,dc=example,dc=org\nmember: uid=otto,ou=people,dc=example,dc=org\n"
    )
    return "\n".join(parts)


def certify(folder: Path) -> None:
    """A self-signed certificate for this machine: `ca.pem`, `key.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def start(folder: Path, port: int, tls_port: int) -> subprocess.Popen[bytes]:
    """Start the directory at both ports, with its data loaded."""
    certify(folder)
    (folder / "data").mkdir()
    config = folder / "slapd.conf"
    config.write_text(CONFIG.format(folder=folder, admin=ADMIN, admin_password=ADMIN_PASSWORD))
    (folder / "data.ldif").write_text(ldif())
    subprocess.run([PROGRAM, "-T", "add", "-f", config, "-l", folder / "data.ldif"], check=True, timeout=60)
    urls = f"ldap://127.0.0.1:{port} ldaps://127.0.0.1:{tls_port}"
    return subprocess.Popen([PROGRAM, "-f", config, "-h", urls, "-d", "0"])
