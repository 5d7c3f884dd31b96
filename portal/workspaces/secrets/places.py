"""Rules for paths in Vault: a secret may only name a path below its holder's folders.

The portal reads all secrets with the same Vault role, so Vault cannot check on whose behalf it reads. Without
this rule a user could name another user's path and receive the value.
"""

from __future__ import annotations

import re

from django.conf import settings

MAX_PATH = 400
MAX_KEY = 100
_SEGMENT = re.compile(r"[\w.@+:=~-]+\Z")


def is_configured() -> bool:
    """Return whether Vault is configured."""
    return bool(settings.BERTH_VAULT_ADDR)


def is_path(path: str) -> bool:
    """Return whether `path` is valid below a mount: segments separated by `/`, without `.` and `..`."""
    return 0 < len(path) <= MAX_PATH and all(_is_segment(segment) for segment in path.split("/"))


def is_key(key: str) -> bool:
    """Return whether `key` can be a key of an entry: printable characters without surrounding spaces."""
    return 0 < len(key) <= MAX_KEY and key.isprintable() and key == key.strip()


def folders(patterns: list[str], **names: str) -> list[str]:
    """Expand patterns such as `berth/users/{user}` into paths.

    Omits patterns with names that are not valid path segments, such as a user called `..`.
    """
    if not all(_is_segment(name) for name in names.values()):
        return []
    paths = []
    for pattern in patterns:
        path = pattern.strip("/")
        for name, value in names.items():
            path = path.replace("{" + name + "}", value)
        if is_path(path):
            paths.append(path)
    return paths


def is_below(path: str, allowed: list[str]) -> bool:
    """Return whether the path is one of the folders or below one."""
    return is_path(path) and any(path == folder or path.startswith(f"{folder}/") for folder in allowed)


def _is_segment(text: str) -> bool:
    return text not in (".", "..") and _SEGMENT.match(text) is not None
