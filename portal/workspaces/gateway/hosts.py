"""Strict parsing of workspace hosts, origins and paths. Invalid input is refused."""

from __future__ import annotations

import re
import uuid
from urllib.parse import quote, urlsplit

EXTERNAL_NAME = re.compile(r"ws-[0-9a-f]{32}", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNSAFE_IN_PATH = re.compile(r"[\x00-\x1f\x7f\\]")


def check_external_name(name: str) -> str:
    """Return `name`. Raises `ValueError` unless it is `ws-` and 32 lower-case hexadecimal digits."""
    if not EXTERNAL_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a workspace's external name (ws- and 32 hexadecimal digits)")
    return name


def workspace_uuid(external_name: str) -> str:
    """Return the workspace's UUID, with hyphens, from its `external_name`."""
    return str(uuid.UUID(hex=check_external_name(external_name)[3:]))


def split_host(host: str) -> tuple[str, int | None] | None:
    """Return the lower-case name without a trailing dot, and the port; `None` if `host` is not valid."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?", host, re.ASCII):
        return None
    name, _, port = host.partition(":")
    name = name.lower().removesuffix(".")
    if not name or (port and not 0 < int(port) < 65536):
        return None
    return name, int(port) if port else None


def workspace_of_host(host: str, domain: str) -> str | None:
    """Return the external name in a Host header below `domain`, or `None`."""
    parts = split_host(host)
    if parts is None:
        return None
    label, _, rest = parts[0].partition(".")
    if rest == domain.lower() and EXTERNAL_NAME.fullmatch(label):
        return label
    return None


def same_origin(origin: str, host: str, scheme: str) -> bool:
    """Return whether an Origin header matches `scheme` and the Host header `host`."""
    expected = split_host(host)
    if expected is None:
        return False
    origin_scheme, separator, origin_host = origin.partition("://")
    sent = split_host(origin_host)
    if not separator or sent is None or origin_scheme.lower() != scheme:
        return False
    default = _DEFAULT_PORTS[scheme]
    return sent[0] == expected[0] and (sent[1] or default) == (expected[1] or default)


def local_path(target: str, default: str = "/") -> str:
    """Return `target`, percent-encoded for a header, if it is a path on this origin; else `default`.

    Refuses everything that a browser could read as another origin: schemes, `//`, backslashes, and control
    characters (which browsers drop before they parse).
    """
    if not target.startswith("/") or target.startswith("//") or _UNSAFE_IN_PATH.search(target):
        return default
    try:
        parts = urlsplit(target)
    except ValueError:
        return default
    if parts.scheme or parts.netloc:
        return default
    # A path that a proxy normalises to `//host` must not leave the origin either.
    if re.match(r"/(\.{1,2}/|%2e)*/", target, re.IGNORECASE):
        return default
    return quote(target, safe="/?#%&=+:;,@!$'()*~[]-._")
