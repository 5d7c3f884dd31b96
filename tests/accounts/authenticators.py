"""Second factors for tests: an authenticator app with known secret, and a passkey with a real key pair."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from typing import Any

from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from django.utils import timezone
from fido2 import cbor
from fido2.cose import ES256
from fido2.utils import websafe_decode, websafe_encode

from portal.people.accounts.mfa.factors import new_secret
from portal.people.accounts.models import User


def code_of(secret: str, *, steps: int = 0) -> str:
    """The code that the app shows `steps` × 30 s from now."""
    return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps)))


def with_app(user: User) -> str:
    """Give `user` an authenticator app; returns its secret."""
    secret = new_secret()
    data = {"secret": get_adapter().encrypt(secret)}
    Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data=data)
    _switch_on(user)
    return secret


def with_codes(user: User) -> list[str]:
    """Give `user`, who has a factor, recovery codes; return them."""
    return list(RecoveryCodes.activate(user).generate_codes())


def _switch_on(user: User) -> None:
    user.mfa_since = timezone.now()
    user.save(update_fields=["mfa_since"])


class Passkey:
    """A software authenticator that answers every request of a page at `origin`."""

    def __init__(self, *, rp: str = "localhost", origin: str = "http://localhost") -> None:
        self.rp, self.origin = rp, origin
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.id = os.urandom(32)
        self.counter = 0
        self.handle = b""

    def created(self, options: dict[str, Any]) -> str:
        """The response to `navigator.credentials.create`."""
        public = options["publicKey"]
        self.handle = websafe_decode(public["user"]["id"])
        cose = cbor.encode(ES256.from_cryptography_key(self.key.public_key()))
        attested = bytes(16) + struct.pack(">H", len(self.id)) + self.id + cose
        attestation = {"fmt": "none", "attStmt": {}, "authData": self._data(0x45) + attested}
        return self._answer(
            {
                "clientDataJSON": websafe_encode(self._client("webauthn.create", public["challenge"])),
                "attestationObject": websafe_encode(cbor.encode(attestation)),
            }
        )

    def used(
        self, options: dict[str, Any], *, verified: bool = True, handle: bytes | None = None, **client: Any
    ) -> str:
        """The response to `navigator.credentials.get`; `client` overrides values of the client data."""
        if self.counter:
            self.counter += 1
        client_data = self._client("webauthn.get", options["publicKey"]["challenge"], **client)
        data = self._data(0x05 if verified else 0x01)
        signed = self.key.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(hashes.SHA256()))
        return self._answer(
            {
                "clientDataJSON": websafe_encode(client_data),
                "authenticatorData": websafe_encode(data),
                "signature": websafe_encode(signed),
                "userHandle": websafe_encode(self.handle if handle is None else handle),
            }
        )

    def _answer(self, response: dict[str, str]) -> str:
        name = websafe_encode(self.id)
        return json.dumps(
            {
                "id": name,
                "rawId": name,
                "type": "public-key",
                "clientExtensionResults": {},
                "response": response,
            }
        )

    def _client(self, kind: str, challenge: str, **more: Any) -> bytes:
        data = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False, **more}
        return json.dumps(data).encode()

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.rp.encode()).digest() + struct.pack(">BI", flags, self.counter)
