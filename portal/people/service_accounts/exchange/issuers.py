"""Signing keys of allowed issuers, found by OpenID Connect discovery and cached.

Only issuers in `BERTH_TOKEN_EXCHANGE_ISSUERS` are contacted.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from django.conf import settings

FRESH_S = 600.0
"""Seconds for which keys are used without refreshing."""
STALE_S = 86_400.0
"""Seconds for which cached keys are used while their issuer does not answer."""
RETRY_S = 30.0
"""Minimum seconds between requests to an issuer, regardless of its response."""
STEP_S = 3.0
TOTAL_S = 5.0
MAX_BYTES = 256 * 1024
MAX_KEYS = 50
MIN_RSA_BITS = 2048

log = logging.getLogger(__name__)


class IssuerUnreachable(Exception):
    """The issuer's keys are unavailable. The message is for the log."""


class UnknownKey(Exception):
    """The issuer has no such key."""


@dataclass(slots=True)
class _Keys:
    by_id: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    fetched_at: float = float("-inf")
    tried_at: float = float("-inf")
    lock: threading.Lock = field(default_factory=threading.Lock)


_keys_by_issuer: dict[str, _Keys] = {}
_known_lock = threading.Lock()


def allowed() -> list[str]:
    """Return the allowed issuers, as spelled in tokens."""
    return list(settings.BERTH_TOKEN_EXCHANGE_ISSUERS)


def key_for(issuer: str, key_id: str, algorithm: str) -> Any:
    """Return the public key with this id, for signatures by this algorithm.

    Refreshes the cache for an unknown id, at most once per `RETRY_S`. Raises `UnknownKey` and
    `IssuerUnreachable`.
    """
    with _known_lock:
        keys = _keys_by_issuer.setdefault(issuer, _Keys())
    now = time.monotonic()
    if key_id not in keys.by_id or now - keys.fetched_at > FRESH_S:
        with keys.lock:
            if now - keys.tried_at > RETRY_S and not (keys.fetched_at > now and key_id in keys.by_id):
                _refresh(issuer, keys)
    if time.monotonic() - keys.fetched_at > STALE_S:
        raise IssuerUnreachable(issuer)
    key_data = keys.by_id.get(key_id)
    if key_data is None:
        if keys.tried_at > keys.fetched_at:
            raise IssuerUnreachable(issuer)
        raise UnknownKey(key_id)
    return _public_key(key_data, algorithm)


def forget() -> None:
    """Clear the cache."""
    with _known_lock:
        _keys_by_issuer.clear()


def check_url(url: str) -> str:
    """Return `url` if it uses https, or http to this machine where configured. Raises `IssuerUnreachable`."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname and not parts.username:
        return url
    allowed_here = settings.BERTH_TOKEN_EXCHANGE_LOOPBACK and _is_loopback(parts.hostname or "")
    if parts.scheme == "http" and allowed_here:
        return url
    raise IssuerUnreachable(f"{url[:200]} was not queried: https is required")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refresh(issuer: str, keys: _Keys) -> None:
    """Refresh the issuer's keys. Keeps the cached ones on failure."""
    try:
        described = _fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if described.get("issuer") != issuer:
            raise IssuerUnreachable(f"{issuer} names another issuer: {str(described.get('issuer'))[:200]}")
        key_list = _fetch(str(described.get("jwks_uri", ""))).get("keys")
        if not isinstance(key_list, list):
            raise IssuerUnreachable(f"{issuer} lists no keys")
        by_id: dict[str, Mapping[str, Any]] = {
            key["kid"]: key
            for key in key_list[:MAX_KEYS]
            if isinstance(key, dict) and isinstance(key.get("kid"), str) and key.get("use", "sig") == "sig"
        }
    except IssuerUnreachable as error:
        keys.tried_at = time.monotonic()
        log.warning("could not read issuer keys: %s", error)
        return
    keys.by_id = by_id
    keys.fetched_at = keys.tried_at = time.monotonic()


def _fetch(url: str) -> dict[str, Any]:
    """Fetch a JSON object, within `TOTAL_S` and `MAX_BYTES` and without following redirects.

    Raises `IssuerUnreachable`.
    """
    check_url(url)
    deadline = time.monotonic() + TOTAL_S
    body = bytearray()
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    try:
        with (
            httpx.Client(timeout=STEP_S, follow_redirects=False) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            encoding = response.headers.get("Content-Encoding", "identity")
            if response.status_code != 200 or encoding != "identity":
                raise IssuerUnreachable(f"{url} answered {response.status_code}")
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise IssuerUnreachable(f"{url} answered with more than {MAX_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise IssuerUnreachable(f"{url} took longer than {TOTAL_S} s")
        document = json.loads(bytes(body))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise IssuerUnreachable(f"{url}: {error}") from error
    if not isinstance(document, dict):
        raise IssuerUnreachable(f"{url} did not answer with a JSON object")
    return document


_BY_TYPE = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
ALGORITHMS = frozenset().union(*_BY_TYPE.values())
"""Asymmetric signatures only: with a shared secret, a verifier could also sign."""


def _public_key(key_data: Mapping[str, Any], algorithm: str) -> Any:
    """Return the key if it fits the algorithm. Raises `UnknownKey`."""
    if (
        algorithm not in _BY_TYPE.get(str(key_data.get("kty")), ())
        or key_data.get("alg", algorithm) != algorithm
    ):
        raise UnknownKey(f"{key_data.get('kid')} is not for {algorithm}")
    try:
        key = jwt.PyJWK.from_dict(dict(key_data), algorithm=algorithm).key
    except jwt.PyJWTError as error:
        raise UnknownKey(str(error)) from error
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise UnknownKey(f"{key_data.get('kid')} is too short")
    return key
