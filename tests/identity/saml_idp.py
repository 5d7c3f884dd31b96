"""A SAML identity provider for tests, with valid and forged responses."""

from __future__ import annotations

import base64
import datetime as dt
import secrets
import zlib
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Constants
from onelogin.saml2.utils import OneLogin_Saml2_Utils as Utils

ENTITY = "https://idp.example.org/metadata"
SSO = "https://idp.example.org/sso"
ASSERTION = """<saml:Assertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="{assertion_id}" \
Version="2.0" IssueInstant="{now}"><saml:Issuer>{issuer}</saml:Issuer><saml:Subject><saml:NameID \
Format="{name_format}">{name_id}</saml:NameID><saml:SubjectConfirmation \
Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml:SubjectConfirmationData {answers} \
NotOnOrAfter="{until}" \
Recipient="{recipient}"/></saml:SubjectConfirmation></saml:Subject><saml:Conditions NotBefore="{since}" \
NotOnOrAfter="{until}"><saml:AudienceRestriction><saml:Audience>{audience}</saml:Audience>\
</saml:AudienceRestriction>\
</saml:Conditions><saml:AuthnStatement AuthnInstant="{now}" SessionIndex="s1"><saml:AuthnContext>\
<saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:{context}</saml:AuthnContextClassRef>\
</saml:AuthnContext></saml:AuthnStatement><saml:AttributeStatement>{attributes}</saml:AttributeStatement>\
</saml:Assertion>"""
RESPONSE = """<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" \
xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="{response_id}" Version="2.0" IssueInstant="{now}" \
Destination="{recipient}" {answers}><saml:Issuer>{issuer}</saml:Issuer><samlp:Status><samlp:StatusCode \
Value="urn:oasis:names:tc:SAML:2.0:status:{status}"/></samlp:Status>{assertion}</samlp:Response>"""
PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"


class Idp:
    """The provider, with its own key."""

    def __init__(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=30))
            .sign(key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.key = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    def assertion(self, request_id: str, *, groups: tuple[str, ...] = ("vision",), **changes: str) -> str:
        """An unsigned assertion about nora. `changes` replaces values of the template."""
        now = dt.datetime.now(dt.UTC)
        shift = dt.timedelta(seconds=int(changes.pop("shift_s", "0")))
        attributes = {"uid": ["nora"], "mail": ["nora@example.org"], "groups": list(groups)}
        text = "".join(
            f'<saml:Attribute Name="{name}">'
            + "".join(f"<saml:AttributeValue>{escape(value)}</saml:AttributeValue>" for value in values)
            + "</saml:Attribute>"
            for name, values in attributes.items()
        )
        values = {
            "assertion_id": f"_{secrets.token_hex(8)}",
            "now": f"{now + shift:%Y-%m-%dT%H:%M:%SZ}",
            "since": f"{now + shift - dt.timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}",
            "until": f"{now + shift + dt.timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}",
            "issuer": ENTITY,
            "name_id": "nora-42",
            "name_format": PERSISTENT,
            "answers": f'InResponseTo="{request_id}"' if request_id else "",
            "context": "PasswordProtectedTransport",
            "attributes": text,
            **changes,
        }
        return ASSERTION.format(**values)

    def signed(self, xml: str) -> str:
        """The element, signed."""
        signed = Utils.add_sign(
            xml, self.key, self.certificate, False, Constants.RSA_SHA256, Constants.SHA256
        )
        return signed.decode() if isinstance(signed, bytes) else str(signed)

    @staticmethod
    def response(assertion: str, request_id: str, recipient: str, **changes: str) -> str:
        values = {
            "response_id": f"_{secrets.token_hex(8)}",
            "now": f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            "issuer": ENTITY,
            "answers": f'InResponseTo="{request_id}"' if request_id else "",
            "status": "Success",
            **changes,
        }
        return RESPONSE.format(assertion=assertion, recipient=recipient, **values)


def encoded(xml: str) -> str:
    return base64.b64encode(xml.encode()).decode()


def request_in(url: str) -> etree._Element:
    """The SAML request in a browser's URL."""
    encoded_request = parse_qs(urlsplit(url).query)["SAMLRequest"][0]
    return etree.fromstring(zlib.decompress(base64.b64decode(encoded_request), -15))
