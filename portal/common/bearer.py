"""The header by which a program shows its API token."""

from __future__ import annotations


def token_in(header: str) -> str | None:
    """The secret in an `Authorization` header of the kind `Bearer`; None for another kind, and for none."""
    kind, _space, secret = header.partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None
