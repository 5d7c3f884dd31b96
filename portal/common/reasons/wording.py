"""Renders reasons as text. Each package has its texts in a module `wording`, as `TEXTS`.

Call `message_of` and `next_action_of` at the edge: pages, REST's `detail`, notices, the audit log. `TEXTS`
here has the refusals that any package may raise.
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
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_duration
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.rooms import modules_named

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a code: a message and a next action, both format strings over the parameters.

    Escape percent signs as `%%`. For plurals, use `ngettext_lazy` with the name of the parameter. `prepare`
    converts parameters to the values in the formats: amounts with units, times, joined names.
    """

    message: str | Promise
    next_action: str | Promise = ""
    prepare: Callable[[Params], Params] | None = None


def message_of(reason: Reason) -> str:
    """Return the message in the active language."""
    text = text_of(reason.code)
    return _format(text.message, text, reason)


def next_action_of(reason: Reason) -> str:
    """Return the next action, or ""."""
    text = text_of(reason.code)
    return _format(text.next_action, text, reason)


def text_of(code: StrEnum) -> Text:
    """Return the text of a code. Raises `LookupError` if it has none; a test checks all codes."""
    return _texts()[type(code), code]


def sentence_of(reason: Reason) -> str:
    """Return the message and next action as one text."""
    return " ".join(part for part in (message_of(reason), next_action_of(reason)) if part)


def joined_lists(*names: str) -> Callable[[Params], Params]:
    """Return a `prepare` that joins these parameters, lists of names, with commas."""
    return lambda params: {**params, **{name: ", ".join(params[name]) for name in names}}


def durations(params: Params) -> Params:
    """Format parameters named `*_s`, in seconds, as durations. For use as `prepare`."""
    return {
        name: format_duration(value) if name.endswith("_s") and isinstance(value, int | float) else value
        for name, value in params.items()
    }


def first_problem(params: Params) -> Params:
    """Replace `first`, a field error as JSON, with its message. For use as `prepare` of forms."""
    return {**params, "first": message_of(Reason.from_json(params["first"]))}


def join_names(names: Sequence[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    first, last = ", ".join(names[:-1]), names[-1]
    return gettext("%(first)s and %(last)s") % {"first": first, "last": last}


def reason_of(stored: Mapping[str, Any]) -> Reason | None:
    """Restore a stored reason. Returns None if it is empty or has an unknown code."""
    try:
        return Reason.from_json(stored)
    except LookupError:
        return None


def _format(pattern: str | Promise, text: Text, reason: Reason) -> str:
    # Format even without parameters: a lazy plural has no text until its number is set.
    params = reason.params if text.prepare is None else text.prepare(reason.params)
    return str(pattern % dict(params))


@lru_cache(maxsize=1)
def _texts() -> dict[tuple[type[StrEnum], str], Text]:
    # Keyed by enumeration too, because members of different enumerations with equal values are equal. Built
    # at once, because the first requests of a process run in several threads.
    texts: dict[tuple[type[StrEnum], str], Text] = {}
    for name in modules_named("wording"):
        room: dict[StrEnum, Text] = import_module(name).TEXTS
        texts.update({(type(code), code.value): text for code, text in room.items()})
    return texts


_CHOICES = {
    "template": _("Choose a template first."),
    "flavor": _("Choose a size first."),
    "team": _("Choose a team first."),
}


def _parameters(params: Params) -> Params:
    names = ", ".join(params["known"])
    texts = (
        gettext("Use one of: %(names)s.") % {"names": names} if names else gettext("Remove all parameters.")
    )
    return {"known": texts}


TEXTS: dict[StrEnum, Text] = {
    CommonCode.CHANGED_BY_SOMEBODY: Text(
        _("%(by)s changed “%(name)s” after you opened it."), _("Reload it, then try again.")
    ),
    CommonCode.CHANGED_SINCE: Text(
        _("“%(name)s” changed after you opened it."), _("Reload it, then try again.")
    ),
    CommonCode.CHOOSE_ONE_OF: Text(_("Choose one of: %(known)s."), prepare=joined_lists("known")),
    CommonCode.CHOOSE_WHAT_TO_DO: Text(_("No action was chosen."), _("Use one of the buttons.")),
    CommonCode.CORRECT_AND_RETRY: Text("%(first)s", _("Correct it and try again."), prepare=first_problem),
    CommonCode.FIRST_CHOICE_MISSING: Text(
        "%(choose)s",
        _("Check the summary for missing choices."),
        prepare=lambda params: {"choose": _CHOICES[params["field"]]},
    ),
    CommonCode.HOURS_NOT_UNDERSTOOD: Text(_("Enter the duration in hours, such as 8 or 0.5.")),
    CommonCode.UNKNOWN_PARAMETER: Text(_("Unknown query parameter."), "%(known)s", prepare=_parameters),
    CommonCode.PAGE_SIZE_INVALID: Text(
        _("The page size is not valid."), _("Choose a number from 1 to %(maximum)d.")
    ),
    CommonCode.CURSOR_INVALID: Text(
        _("This cursor is not valid."), _("Follow the “next” link of a page, or start without a cursor.")
    ),
    CommonCode.STORAGE_BUSY: Text(
        _("The database is busy, and nothing was changed."), _("Try again in a moment.")
    ),
    CommonCode.STORAGE_FAILS: Text(
        _("The database is unavailable, and nothing was changed."),
        _("Try again in a minute. If the problem persists, contact an operator."),
    ),
    CommonCode.STORAGE_FULL: Text(
        _("The disk of the database is full, and nothing was changed."),
        _("Ask an operator to free disk space."),
    ),
    CommonCode.STORAGE_READ_ONLY: Text(
        _("The database is read-only, and nothing was changed."),
        _("Try again later, or contact an operator."),
    ),
    CommonCode.LAST_EVENT_ID_INVALID: Text(
        _("The Last-Event-ID is not valid."),
        _("Send the ID of an event of this workspace, or omit the header."),
    ),
    CommonCode.IDEMPOTENCY_KEY_REUSED: Text(
        _("This Idempotency-Key was used for another request."), _("Use a new key for a new request.")
    ),
    CommonCode.ONLY_ADMINISTRATORS: Text(
        _("Only administrators can do this."), _("Ask an administrator of this installation.")
    ),
}
