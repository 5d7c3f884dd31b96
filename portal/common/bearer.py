"""Parsing of the `Authorization` header."""

from __future__ import annotations


def bearer_token(header: str) -> str | None:
    """Return the secret of an `Authorization: Bearer` header, or None for any other header."""
    kind, _space, secret = header.partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None
