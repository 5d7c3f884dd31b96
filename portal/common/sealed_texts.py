"""Texts that are kept encrypted at rest: what the portal has to know again, such as a webhook's secret.

The key is derived from the portal's secret key. What was written under a key from before
(`BERTH_SECRET_KEY_FALLBACKS`) is read as well; the next time it is written it is under the present one.
`manage.py reseal_texts` writes all of them anew.
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
    """It was written under a secret key that is not known here any more."""


def seal(text: str, *, purpose: str) -> str:
    """The text encrypted and authenticated. `purpose` names the column: it opens there and nowhere else."""
    return _ciphers(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """The text again. Raises `Unreadable`."""
    try:
        return _ciphers(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise Unreadable(purpose) from None


def _ciphers(purpose: str) -> MultiFernet:
    """The present key first: it is the one that writes."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_key(purpose, key)) for key in keys])


def _key(purpose: str, secret: str | bytes) -> bytes:
    digest = salted_hmac(f"berth.sealed.{purpose}", "key", secret=secret, algorithm="sha256").digest()
    return base64.urlsafe_b64encode(digest)


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed texts. `purpose` is that of each row; an empty text is none."""

    model: type[Model]
    field: str
    purpose: Callable[[Any], str]


COLUMNS: list[SealedColumn] = []
"""Every column of sealed texts; `portal/wiring.py` lists them."""


def reseal(column: SealedColumn) -> tuple[int, int]:
    """Write all texts of a column under the present key; how many were, and how many nobody can read.

    A row that is written meanwhile is left alone: who writes does so under the present key.
    """
    written = lost = 0
    for row in column.model._default_manager.exclude(**{column.field: ""}).order_by("pk").iterator():
        sealed = getattr(row, column.field)
        try:
            found = _ciphers(column.purpose(row)).rotate(sealed.encode()).decode()
        except InvalidToken:
            lost += 1
            continue
        same = column.model._default_manager.filter(pk=row.pk, **{column.field: sealed})
        written += same.update(**{column.field: found})
    return written, lost
