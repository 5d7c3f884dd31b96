"""The only place that makes sentences of reasons. Each module has the texts of one enumeration of `codes`.

`message_of` and `next_action_of` are for the edge: pages, REST's `detail`, notices, the audit log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext

from portal.common.formatting import format_duration
from portal.common.reasons.reason import Reason
from portal.common.reasons.rooms import modules_named

Params = Mapping[str, Any]
_MODULES = (
    "common",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """The text of one code: what is so, and one thing to do next. Both are formats over the params.

    A percent sign is written `%%`; what depends on a count is an `ngettext_lazy` with the param's name.
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
    return _texts()[type(code), code]


def sentence_of(reason: Reason) -> str:
    """The message and the next action, for places that show both as one text."""
    return " ".join(part for part in (message_of(reason), next_action_of(reason)) if part)


def listed(*names: str) -> Callable[[Params], Params]:
    """For `prepare`: these params are lists of names and stand in the text with commas between them."""
    return lambda params: {**params, **{name: ", ".join(params[name]) for name in names}}


def durations(params: Params) -> Params:
    """For `prepare`: params whose names end in `_s` are seconds, and stand in the text as durations."""
    return {
        name: format_duration(value) if name.endswith("_s") and isinstance(value, int | float) else value
        for name, value in params.items()
    }


def first_problem(params: Params) -> Params:
    """For `prepare`: `first` is a reason in its JSON form, the first of those at a form's fields."""
    return {**params, "first": message_of(Reason.from_json(params["first"]))}


def names_joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    first, last = ", ".join(names[:-1]), names[-1]
    return gettext("%(first)s and %(last)s") % {"first": first, "last": last}


def reason_of(stored: Mapping[str, Any]) -> Reason | None:
    """The reason that a row keeps; None for an empty one, and for one whose code there is no more."""
    try:
        return Reason.from_json(stored)
    except LookupError:
        return None


def _filled(pattern: str | Promise, text: Text, reason: Reason) -> str:
    # Always a format, also without params: a lazy plural has no text before it knows its number.
    params = reason.params if text.prepare is None else text.prepare(reason.params)
    return str(pattern % dict(params))


@lru_cache(maxsize=1)
def _texts() -> dict[tuple[type[StrEnum], str], Text]:
    # By enumeration too: members of two that have the same value are equal to each other. Made as a whole, as
    # the first requests of a process come in several threads.
    found: dict[tuple[type[StrEnum], str], Text] = {}
    for name in (*(f"{__name__}.{each}" for each in _MODULES), *modules_named("wording")[1:]):
        texts: dict[StrEnum, Text] = import_module(name).TEXTS
        found.update({(type(code), code.value): text for code, text in texts.items()})
    return found
