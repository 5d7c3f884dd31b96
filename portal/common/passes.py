"""Passes let the front door admit further requests of a session without asking the portal.

A pass is an empty file, created by forward-auth (`portal.workspaces.gateway.passes`) and looked up by the
front door (`portal.embedded.passes`):

    <folder>/<key>/<second>/<workspace>/<credential>,<generation>,<kind>,<secret>

`second` is the current UTC time in seconds since the epoch. It is a link that the gateway process creates in
advance while its view of Redis is current. `credential` is what the client presents: a session cookie, or a
token and its client address. The rest identifies the start of the workspace, and the secret for its app.

Uses only the standard library, because the launcher of the front door imports it, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Mapping

COOKIE = "[A-Za-z0-9_-]{43}"
TOKEN = "[A-Za-z0-9_-]{24,128}"  # noqa: S105  (a pattern)
ADDRESS = "[0-9a-f.:]{2,39}"
WORKSPACE = "ws-[0-9a-f]{32}"
GENERATION = "[1-9][0-9]{0,9}"
SECRET = "[A-Za-z0-9_-]{1,64}"  # noqa: S105  (a pattern)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

BEARER, EDITOR, NOTHING = "b", "e", "n"
"""Kinds: the secret is a bearer token, or the cookie `EDITOR_COOKIE`, or there is none."""
EDITOR_COOKIE = "code-server-session"

_HEADERS = (
    (BEARER, "Authorization", re.compile(f"Bearer ({SECRET})")),
    (EDITOR, "Cookie", re.compile(f"{EDITOR_COOKIE}=({SECRET})")),
)


def key_of(gateway_secret: str) -> str:
    """Return the name of the only valid folder of passes.

    It is derived from a secret, so it cannot be forged.
    """
    return hmac.new(gateway_secret.encode(), b"berth:passes", hashlib.sha256).hexdigest()


def app_credential(upstream_headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the kind and secret of these headers to the app, or None if a pass cannot express them."""
    if not upstream_headers:
        return NOTHING, ""
    for kind, name, pattern in _HEADERS:
        match = pattern.fullmatch(upstream_headers.get(name, ""))
        if match is not None and len(upstream_headers) == 1:
            return kind, match[1]
    return None


def token_credential(token: str, address: str) -> str:
    """Return the credential of a token, or "" if a pass cannot contain it.

    Without one, requests go through forward-auth.
    """
    plain = re.fullmatch(TOKEN, token) and re.fullmatch(ADDRESS, address)
    return f"{token}@{address}" if plain else ""


def cookie_credential(value: str) -> str:
    """Return the credential of a session cookie, or "" if a pass cannot contain it."""
    return value if re.fullmatch(COOKIE, value) else ""


def pause(folder: str, gateway_secret: str) -> None:
    """Invalidate all passes until the gateway process has seen the latest change in Redis.

    Passes resume within half a second. If `folder` is empty or unreachable from here, the gateway process
    relies on the notification about the change.
    """
    if not folder:
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        # The folder may belong to another user (docs/adr/0069-services-account.md), so no link is followed.
        home = os.open(folder, _FOLDER)
        opened.callback(os.close, home)
        inner = os.open(key_of(gateway_secret), _FOLDER, dir_fd=home)
        opened.callback(os.close, inner)
        with os.scandir(inner) as entries:
            seconds = [entry.name for entry in entries if entry.name.isdigit()]
        for second in seconds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(second, dir_fd=inner)
