"""Client for Vault or OpenBao: KV version 2 engines, with AppRole or a token from a file.

The portal reads Vault when a workspace starts, outside of transactions. Values are not stored; the portal's
own token is cached in memory for the duration of its lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
import requests
from django.conf import settings
from hvac import exceptions

from portal.common.errors import PortalError, StateConflict, Unavailable
from portal.common.reasons.reason import Reason
from portal.workspaces.secrets import places
from portal.workspaces.secrets.codes import SecretCode

log = logging.getLogger(__name__)

TIMEOUT_S = (2.0, 4.0)
"""Timeouts in seconds: to connect, and to read."""
REST_S = 2.0
"""Seconds without requests after Vault was unavailable, so that starts do not block threads."""
MAX_TOKEN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in Vault: its values by key, and its version."""

    values: dict[str, Any]
    version: int


@dataclass(slots=True)
class _CachedToken:
    """A cached token with its expiry (monotonic seconds) and the settings for which Vault issued it."""

    token: str = ""
    until: float = 0.0
    settings: tuple[str, ...] = ()
    away_until: float = 0.0
    away: SecretCode = SecretCode.VAULT_AWAY


_kept = _CachedToken()
_lock = threading.Lock()


def forget() -> None:
    """Drop the cached token and the recorded outage."""
    global _kept
    _kept = _CachedToken()


def read(paths: Iterable[str]) -> dict[str, Entry | PortalError]:
    """Return the entry at each path below the mount, or the error.

    `Unavailable` is temporary (Vault is down, sealed or busy); `StateConflict` needs a change of
    configuration.
    """
    results: dict[str, Entry | PortalError] = {}
    session = requests.Session()
    session.trust_env = False  # No proxy, .netrc or environment variable may redirect the token.
    session.verify = settings.BERTH_VAULT_CA_FILE or True
    with session:
        for path in dict.fromkeys(paths):
            try:
                results[path] = _read(session, path)
            except PortalError as error:
                results[path] = error
    return results


def _read(session: requests.Session, path: str) -> Entry:
    if not places.is_configured():
        raise StateConflict(Reason(SecretCode.VAULT_NOT_CONFIGURED))
    if time.monotonic() < _kept.away_until:
        raise Unavailable(Reason(_kept.away))
    try:
        token, fresh = _token(session)
        try:
            return _entry(_client(session, token), path)
        except exceptions.Forbidden:
            if not fresh:
                # The token may have been revoked, or Vault was set up again.
                with _lock:
                    _kept.token = ""
                token, fresh = _token(session)
                try:
                    return _entry(_client(session, token), path)
                except exceptions.Forbidden:
                    pass
            raise _denial_error(session, token, path) from None
    except exceptions.InvalidPath:
        raise StateConflict(Reason(SecretCode.VAULT_NO_SUCH_PATH, {"path": path})) from None
    except exceptions.InvalidRequest as error:
        log.error("Vault rejected the request for %s: %s", path, error.errors)
        raise StateConflict(Reason(SecretCode.VAULT_UNEXPECTED, {"path": path})) from None
    except exceptions.VaultDown as error:
        sealed = any("sealed" in str(line).lower() for line in error.errors or [])
        raise _outage_error(error, SecretCode.VAULT_SEALED if sealed else SecretCode.VAULT_AWAY) from None
    except requests.exceptions.SSLError as error:
        log.error("Vault at %s: certificate not trusted (%s)", settings.BERTH_VAULT_ADDR, error)
        raise StateConflict(Reason(SecretCode.VAULT_CERTIFICATE)) from None
    except (requests.exceptions.RequestException, exceptions.VaultError) as error:
        raise _outage_error(error, SecretCode.VAULT_AWAY) from None
    except OSError as error:  # For example, the CA file is missing.
        log.error("cannot query Vault: %s", error)
        raise StateConflict(Reason(SecretCode.VAULT_CERTIFICATE)) from None


def _entry(client: Any, path: str) -> Entry:
    """Return the entry at a path.

    Raises the errors of hvac, and `StateConflict` for a response that is not from KV version 2.
    """
    answer = client.secrets.kv.v2.read_secret_version(
        path, mount_point=settings.BERTH_VAULT_MOUNT, raise_on_deleted_version=True
    )
    try:
        values, version = answer["data"]["data"], int(answer["data"]["metadata"]["version"])
    except (KeyError, TypeError, ValueError):
        values, version = None, 0
    if not isinstance(values, dict):
        log.error("Vault's answer about %s is not from a KV version 2 engine", path)
        raise StateConflict(Reason(SecretCode.VAULT_UNEXPECTED, {"path": path}))
    return Entry(values, version)


def _client(session: requests.Session, token: str) -> Any:
    # Pass an empty token; otherwise hvac looks for one in the environment and the home folder.
    return hvac.Client(
        url=settings.BERTH_VAULT_ADDR,
        token=token,
        namespace=settings.BERTH_VAULT_NAMESPACE or None,
        verify=session.verify,
        timeout=TIMEOUT_S,
        # A redirect would send the token to another host.
        allow_redirects=False,
        session=session,
    )


def _token(session: requests.Session) -> tuple[str, bool]:
    """Return the portal's token, and whether it was just issued."""
    if settings.BERTH_VAULT_TOKEN_FILE:
        return _file(settings.BERTH_VAULT_TOKEN_FILE), True
    own = (
        *(settings.BERTH_VAULT_ADDR, settings.BERTH_VAULT_NAMESPACE),
        *(settings.BERTH_VAULT_APPROLE_MOUNT, settings.BERTH_VAULT_ROLE_ID),
    )
    with _lock:
        now = time.monotonic()
        if _kept.token and _kept.settings == own and now < _kept.until:
            return _kept.token, False
        try:
            answer = _client(session, "").auth.approle.login(
                role_id=settings.BERTH_VAULT_ROLE_ID,
                secret_id=_file(settings.BERTH_VAULT_SECRET_ID_FILE),
                use_token=False,
                mount_point=settings.BERTH_VAULT_APPROLE_MOUNT,
            )
            token, lasts_s = str(answer["auth"]["client_token"]), float(answer["auth"]["lease_duration"])
        except (exceptions.InvalidRequest, exceptions.Forbidden, exceptions.InvalidPath) as error:
            log.error("Vault rejected the portal's AppRole: %s", error.errors)
            raise StateConflict(Reason(SecretCode.VAULT_LOGIN_REFUSED)) from None
        except (KeyError, TypeError, ValueError):
            log.error("Vault's answer to the AppRole login has no token")
            raise StateConflict(Reason(SecretCode.VAULT_LOGIN_REFUSED)) from None
        _kept.token, _kept.settings = token, own
        _kept.until = now + min(lasts_s * 0.8 or MAX_TOKEN_S, MAX_TOKEN_S)
        return token, True


def _file(name: str) -> str:
    """Return the content of a file. Not cached, because the file may change."""
    try:
        text = Path(name).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        log.error("cannot read %s, which the portal needs to sign in to Vault: %s", name, error)
        text = ""
    if not text or not text.isprintable():
        raise StateConflict(Reason(SecretCode.VAULT_LOGIN_REFUSED))
    return text


def _denial_error(session: requests.Session, token: str, path: str) -> StateConflict:
    """Return the reason for a denial by Vault: the token or the path."""
    try:
        _client(session, token).auth.token.lookup_self()
    except exceptions.Forbidden:
        log.error("Vault rejected the portal's token")
        return StateConflict(Reason(SecretCode.VAULT_LOGIN_REFUSED))
    log.error("Vault's policies deny the portal access to %s in %s", path, settings.BERTH_VAULT_MOUNT)
    return StateConflict(Reason(SecretCode.VAULT_FORBIDDEN, {"path": path}))


def _outage_error(error: Exception, code: SecretCode) -> Unavailable:
    log.warning("Vault at %s does not answer: %s (%s)", settings.BERTH_VAULT_ADDR, type(error).__name__, code)
    _kept.away, _kept.away_until = code, time.monotonic() + REST_S
    return Unavailable(Reason(code))
