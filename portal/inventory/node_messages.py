"""What the node plane sends, taken in at one place: a message that does not hold is logged and dropped."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from provisioning import messages

log = logging.getLogger(__name__)
T = TypeVar("T")


def received(data: Any, kind: type[T], *, of: str) -> T | None:
    """The typed value; None where it is not one. `of` says who sent it, for the log."""
    try:
        return messages.receive(data, kind)
    except ValueError as error:
        # Its text may quote what was sent.
        text = str(error)[:300].encode("unicode_escape").decode()
        log.warning("a message of %s is left out: %s", of[:120].encode("unicode_escape").decode(), text)
        return None
