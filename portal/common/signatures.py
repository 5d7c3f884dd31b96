"""Signatures of outgoing messages, following Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime

from standardwebhooks import Webhook

PREFIX = "whsec_"
KEY_BYTES = 32


def new_secret() -> str:
    """Return a new signing secret: `whsec_` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def signed_headers(
    body: bytes, *, message_id: str, at: datetime, signing_secrets: Iterable[str]
) -> dict[str, str]:
    """Return the three signature headers, with one signature per secret for rotation."""
    at = at.astimezone(UTC)
    signatures = [Webhook(secret).sign(message_id, at, body.decode()) for secret in signing_secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
