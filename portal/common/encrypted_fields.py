"""Encrypts stored secrets that the portal has to read back, such as webhook secrets.

Keys are derived from the portal's secret key. Texts encrypted under an earlier key
(`BERTH_SECRET_KEY_FALLBACKS`) stay readable and are re-encrypted when next written. `manage.py reseal_texts`
re-encrypts all of them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.crypto import salted_hmac

if TYPE_CHECKING:
    from django.db.models import Model


class Unreadable(Exception):
    """The text was encrypted under a secret key that is no longer configured."""


def encrypt(text: str, *, purpose: str) -> str:
    """Encrypt and authenticate `text`.

    It can be decrypted only with the same `purpose`, which names the column.
    """
    return _ciphers(purpose).encrypt(text.encode()).decode()


def decrypt(sealed: str, *, purpose: str) -> str:
    """Decrypt a text of `encrypt`. Raises `Unreadable`."""
    try:
        return _ciphers(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise Unreadable(purpose) from None


def _ciphers(purpose: str) -> MultiFernet:
    """Return the ciphers. The current key comes first and encrypts."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_key(purpose, key)) for key in keys])


def _key(purpose: str, secret: str | bytes) -> bytes:
    digest = salted_hmac(f"berth.sealed.{purpose}", "key", secret=secret, algorithm="sha256").digest()
    return base64.urlsafe_b64encode(digest)


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of encrypted texts. `purpose` returns the purpose for a row. Empty texts are not encrypted."""

    model: type[Model]
    field: str
    purpose: Callable[[Any], str]


COLUMNS: list[SealedColumn] = []
"""All columns that this module encrypts, listed in `portal/wiring.py`."""


def reencrypt(column: SealedColumn) -> tuple[int, int]:
    """Re-encrypt a column under the current key. Returns the numbers of rewritten and of unreadable texts.

    Skips rows that change meanwhile, because changes use the current key anyway.
    """
    written = lost = 0
    for row in column.model._default_manager.exclude(**{column.field: ""}).order_by("pk").iterator():
        sealed = getattr(row, column.field)
        try:
            rotated = _ciphers(column.purpose(row)).rotate(sealed.encode()).decode()
        except InvalidToken:
            lost += 1
            continue
        same = column.model._default_manager.filter(pk=row.pk, **{column.field: sealed})
        written += same.update(**{column.field: rotated})
    return written, lost
