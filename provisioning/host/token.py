"""The token with which a machine joins, and the portal's URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from provisioning import location
from provisioning.service.console import Problem

_TOKEN = re.compile(r"berth-join\.([^.\s]+)\.([^.\s]+)\.([0-9a-f]{64})")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token as text, its ID, and the digest of the authority that it trusts."""

    text: str = field(repr=False)
    id: str
    authority: str


def parse(text: str) -> JoinToken:
    """Parse a token. Raises `Problem`."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise Problem(
            "This is not a join token. Join tokens begin with berth-join. and have 4 parts.",
            "Copy the whole command from the pool's page.",
        )
    return JoinToken(match[0], match[1], match[3])


def check_url(text: str) -> str:
    """Return the URL of the machines' endpoint, as `https://host:port`. Raises `Problem`."""
    text = text.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = not (parts.path or parts.query or parts.fragment or parts.username)
    if parts.scheme != "https" or not parts.hostname or not port or not plain:
        raise Problem(
            f"“{text}” is not an address that machines can join.",
            "Copy it from the pool's page: it begins with https:// and has a port.",
        )
    return text


def check_name(name: str) -> str:
    """Return a valid node name. Raises `Problem`."""
    if not _NAME.fullmatch(name):
        raise Problem(
            f"“{name}” is not a valid node name.",
            "Set --name: up to 63 lowercase letters, digits and hyphens.",
        )
    return name


def check_location(name: str, option: str) -> str:
    """Return a valid name of a rack or block, or empty text. Raises `Problem`."""
    if name and not location.is_name(name):
        raise Problem(
            f"“{name}” is not a valid name for {option}.",
            f"Set {option}: up to 63 letters, digits, dots, hyphens and underscores.",
        )
    return name


def name_of(hostname: str) -> str:
    """Return the default node name: the hostname without its domain."""
    return hostname.partition(".")[0].lower().replace("_", "-")
