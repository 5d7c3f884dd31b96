"""The only place that makes sentences of reasons. Each module has the texts of one enumeration of `codes`.

`message_of` and `next_action_of` are for the edge: pages, REST's `detail`, notices, the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from django.utils.functional import Promise

from portal.common.reasons.reason import Reason

Params = Mapping[str, Any]
_MODULES = (
    "accounts", "admission", "catalog", "checks", "common", "inventory", "ledger", "placement",
    "preemption", "quotas", "requests", "reservations", "waiting", "workspaces",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one code: what is so, and one thing to do next. Both are formats over the params.

    `prepare` turns params into what the formats name: amounts with units, times, lists of names.
    """

    message: str | Promise
    next_action: str | Promise = ""
    prepare: Callable[[Params], Params] | None = None


def message_of(reason: Reason) -> str:
    """The sentence, in the present language."""
    text = text_of(reason.code)
    return _filled(text.message, text, reason)


def next_action_of(reason: Reason) -> str:
    """The one next action, or an empty string."""
    text = text_of(reason.code)
    return _filled(text.next_action, text, reason)


def text_of(code: StrEnum) -> Text:
    """The text of a code. Raises `LookupError` for one that has none, which a test finds."""
    return _texts()[code]


def _filled(pattern: str | Promise, text: Text, reason: Reason) -> str:
    words = str(pattern)
    params = reason.params if text.prepare is None else text.prepare(reason.params)
    return words % params if "%" in words else words


_all: dict[StrEnum, Text] = {}


def _texts() -> dict[StrEnum, Text]:
    if not _all:
        for name in _MODULES:
            _all.update(import_module(f"{__name__}.{name}").TEXTS)
    return _all
