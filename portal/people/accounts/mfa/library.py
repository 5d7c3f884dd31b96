"""django-allauth's MFA adapter: encryption of secrets, and names shown in apps."""

from __future__ import annotations

import base64
import hashlib

from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from portal.common.errors import Unavailable
from portal.common.reasons.reason import Reason
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.models import User


class MfaAdapter(DefaultMFAAdapter):
    """Encrypts secrets of apps and recovery codes, so that the database alone does not reveal them."""

    def get_totp_label(self, user: User) -> str:
        return user.username

    def get_totp_issuer(self) -> str:
        return f"Berth {settings.BERTH_PUBLIC_HOST}"

    def encrypt(self, text: str) -> str:
        return _cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt. Raises `Unavailable` if the secret key has changed without a fallback."""
        try:
            return _cipher().decrypt(encrypted_text.encode()).decode()
        except InvalidToken as error:
            raise Unavailable(Reason(MfaCode.SECRET_UNREADABLE)) from error


def _cipher() -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return MultiFernet([Fernet(_derive_key(key)) for key in keys])


def _derive_key(key: str) -> bytes:
    digest = hashlib.blake2b(key.encode(), digest_size=32, person=b"berth mfa").digest()
    return base64.urlsafe_b64encode(digest)
