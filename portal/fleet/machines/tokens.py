"""Join tokens: `berth-join.<id>.<secret>.<digest of the authority>`."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from uuid import UUID

from portal.fleet.machines.models import JoinToken

PREFIX = "berth-join"
_TEXT = re.compile(rf"{PREFIX}\.([0-9a-f]{{32}})\.([A-Za-z0-9_-]{{43}})\.([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class NewJoinToken:
    """A new join token. `text` is shown once and never stored."""

    token: JoinToken
    text: str = field(repr=False)


def new_secret() -> str:
    """Return a secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Return the stored digest of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def text_of(token_id: UUID, secret: str, authority_digest: str) -> str:
    """Return the text of a token."""
    return f"{PREFIX}.{token_id.hex}.{secret}.{authority_digest}"


def parse(text: str) -> tuple[UUID, str] | None:
    """Parse a token into id and secret. Returns None if it is malformed."""
    match = _TEXT.fullmatch(text)
    return (UUID(match[1]), match[2]) if match else None


def secret_matches(secret: str, token: JoinToken) -> bool:
    """Return whether the secret belongs to this token. Compares in constant time."""
    return hmac.compare_digest(digest_of(secret), token.digest)
