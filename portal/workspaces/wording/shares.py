"""Texts about the use of GPU shares by workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import MIB_PER_GIB, format_reading
from portal.common.reasons.wording import Params, Text
from portal.workspaces.codes import ShareCode

_TAKE_LESS = _("Take less of it, or choose a larger part or a whole GPU.")


def _amounts(params: Params) -> Params:
    return {
        "device": params["device"],
        "used": format_reading(params["used_mib"] / MIB_PER_GIB),
        "part": format_reading(params["part_mib"] / MIB_PER_GIB),
    }


def _format_overuse(params: Params) -> Params:
    if seconds := params.get("ends_in_s"):
        follows = _now("after %(seconds)s s the process that holds most of it is ended") % {
            "seconds": seconds
        }
    else:
        follows = _now("processes that hold it may be ended at any time")
    return {**_amounts(params), "follows": follows}


def _format_ended_process(params: Params) -> Params:
    name = params.get("process", "")
    process = _now("its process “%(name)s”") % {"name": name} if name else _now("a process of it")
    return {**_amounts(params), "process": process}


TEXTS: dict[StrEnum, Text] = {
    ShareCode.OVER: Text(
        _("It holds %(used)s GiB of the memory of %(device)s, of which %(part)s GiB are its part."),
        _("Free some of it: %(follows)s."),
        _format_overuse,
    ),
    ShareCode.ASKED: Text(
        _("It took %(used)s of its %(part)s GiB of the memory of %(device)s: %(process)s was asked to end."),
        _TAKE_LESS,
        _format_ended_process,
    ),
    ShareCode.KILLED: Text(
        _("It took %(used)s of its %(part)s GiB of the memory of %(device)s: %(process)s was ended."),
        _TAKE_LESS,
        _format_ended_process,
    ),
    ShareCode.BACK: Text(
        _("It holds %(used)s of its %(part)s GiB of the memory of %(device)s."), prepare=_amounts
    ),
    ShareCode.UNKNOWN: Text(
        _(
            "The driver does not tell how much of the memory of %(device)s its processes hold: "
            "they are not held to their part."
        ),
        _("Take no more than your part, or choose a whole GPU."),
    ),
}
