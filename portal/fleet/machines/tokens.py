"""The tokens by which machines join: `berth-join.<id>.<secret>.<digest of the authority>`."""

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
    """A token just made. `text` is shown once and never stored."""

    token: JoinToken
    text: str = field(repr=False)


def new_secret() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def text_of(token_id: UUID, secret: str, authority_digest: str) -> str:
    """The token as a machine is given it."""
    return f"{PREFIX}.{token_id.hex}.{secret}.{authority_digest}"


def parse(text: str) -> tuple[UUID, str] | None:
    """The id and the secret of a token; None for what is none."""
    found = _TEXT.fullmatch(text)
    return (UUID(found[1]), found[2]) if found else None


def is_of(secret: str, token: JoinToken) -> bool:
    """Whether the secret is this token's; compared in constant time."""
    return hmac.compare_digest(digest_of(secret), token.digest)
