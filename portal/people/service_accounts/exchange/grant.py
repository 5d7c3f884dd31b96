"""URNs of RFC 8693 used in token exchanges."""

from __future__ import annotations

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  (a name)
TOKEN_TYPES = [(ACCESS_TOKEN, ACCESS_TOKEN)]
SUBJECT_TYPES = (
    "urn:ietf:params:oauth:token-type:id_token",
    "urn:ietf:params:oauth:token-type:jwt",
)
