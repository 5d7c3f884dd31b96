"""Names of racks and blocks: the syntax of Kubernetes label values, so labels of nodes can be copied."""

from __future__ import annotations

import re

PATTERN = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(PATTERN)


def is_name(text: str) -> bool:
    """Return whether the text can name a rack or block. Empty text means unknown and is not a name."""
    return _NAME.fullmatch(text) is not None
