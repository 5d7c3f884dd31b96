"""Which places in Vault a secret may name: those below its holder's own paths.

The portal reads Vault with one role of its own, so Vault cannot tell for whom. Without this rule, whoever may
write a secret could name a path of somebody else and have it delivered.
"""

from __future__ import annotations

import re

from django.conf import settings

MAX_PATH = 400
MAX_KEY = 100
_SEGMENT = re.compile(r"[\w.@+:=~-]+\Z")


def is_configured() -> bool:
    """Whether there is a Vault to read from."""
    return bool(settings.BERTH_VAULT_ADDR)


def is_path(path: str) -> bool:
    """Whether it is a path below a mount: names with slashes between them, of which none leads upward."""
    return 0 < len(path) <= MAX_PATH and all(_is_segment(each) for each in path.split("/"))


def is_key(key: str) -> bool:
    """Whether it can be a key of what lies at a path: some characters that are no control characters."""
    return 0 < len(key) <= MAX_KEY and key.isprintable() and key == key.strip()


def folders(patterns: list[str], **names: str) -> list[str]:
    """The paths that patterns such as `berth/users/{user}` stand for, but those that would lead elsewhere.

    A user may be called `..`, which as a part of a path is none.
    """
    if not all(_is_segment(name) for name in names.values()):
        return []
    found = []
    for pattern in patterns:
        path = pattern.strip("/")
        for name, value in names.items():
            path = path.replace("{" + name + "}", value)
        if is_path(path):
            found.append(path)
    return found


def is_below(path: str, allowed: list[str]) -> bool:
    """Whether the path lies below one of the folders, or is one."""
    return is_path(path) and any(path == folder or path.startswith(f"{folder}/") for folder in allowed)


def _is_segment(text: str) -> bool:
    return text not in (".", "..") and _SEGMENT.match(text) is not None
