"""The form of passes, by which the front door lets the next requests of a session through without asking.

A pass is an empty file that forward-auth leaves (`portal.workspaces.gateway.passes`) and the front door finds
(`portal.embedded.passes`):

    <folder>/<key>/<second>/<workspace>/<credential>,<generation>,<kind>,<secret>

`second` is the present one, in seconds of UTC since the epoch: a link that the gateway process makes ahead of
it, as long as it knows what Redis says. `credential` is what the client shows: a session's cookie, or a token
and the address that it came from. The rest says which start of the workspace, and what its app is shown.

This module needs neither Django nor a library, as what starts the front door reads it too.
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
"""Kinds: the secret is a bearer token; it is the cookie `EDITOR_COOKIE`; the app is shown nothing."""
EDITOR_COOKIE = "code-server-session"

_HEADERS = (
    (BEARER, "Authorization", re.compile(f"Bearer ({SECRET})")),
    (EDITOR, "Cookie", re.compile(f"{EDITOR_COOKIE}=({SECRET})")),
)


def key_of(gateway_secret: str) -> str:
    """The name of the one folder whose passes count: nobody else can make it, wherever it is looked for."""
    return hmac.new(gateway_secret.encode(), b"berth:passes", hashlib.sha256).hexdigest()


def shown(upstream_headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Kind and secret for these headers to the app, or None where a pass cannot say them."""
    if not upstream_headers:
        return NOTHING, ""
    for kind, name, pattern in _HEADERS:
        found = pattern.fullmatch(upstream_headers.get(name, ""))
        if found is not None and len(upstream_headers) == 1:
            return kind, found[1]
    return None


def of_token(token: str, address: str) -> str:
    """The credential of a token; empty where it has none: it takes the slow way."""
    plain = re.fullmatch(TOKEN, token) and re.fullmatch(ADDRESS, address)
    return f"{token}@{address}" if plain else ""


def of_cookie(value: str) -> str:
    """The credential of a session's cookie; empty where it has none."""
    return value if re.fullmatch(COOKIE, value) else ""


def pause(folder: str, gateway_secret: str) -> None:
    """Let no pass count until the gateway process has heard what was just written into Redis.

    It goes on when it has, within half a second. Where `folder` is empty, or cannot be reached from
    here, the word of the change has to do.
    """
    if not folder:
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        # The folder may be another user's than ours (docs/adr/0069-services-account.md): no link is followed.
        home = os.open(folder, _FOLDER)
        opened.callback(os.close, home)
        inner = os.open(key_of(gateway_secret), _FOLDER, dir_fd=home)
        opened.callback(os.close, inner)
        with os.scandir(inner) as entries:
            seconds = [entry.name for entry in entries if entry.name.isdigit()]
        for second in seconds:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(second, dir_fd=inner)
