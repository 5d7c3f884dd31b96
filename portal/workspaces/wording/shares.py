"""Texts about the use of GPU shares by workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import MIB_PER_GIB, format_reading
from portal.common.reasons.wording import Params, Text
from portal.workspaces.codes import ShareCode

_USE_LESS = _("Use less GPU memory, or choose a larger share or a whole GPU.")


def _amounts(params: Params) -> Params:
    return {
        "device": params["device"],
        "used": format_reading(params["used_mib"] / MIB_PER_GIB),
        "part": format_reading(params["part_mib"] / MIB_PER_GIB),
    }


def _format_overuse(params: Params) -> Params:
    if seconds := params.get("ends_in_s"):
        follows = _now("Otherwise the node ends the largest process after %(seconds)s s.") % {
            "seconds": seconds
        }
    else:
        follows = _now("Otherwise the node may end its processes at any time.")
    return {**_amounts(params), "follows": follows}


def _format_ended_process(params: Params) -> Params:
    name = params.get("process", "")
    process = _now("process “%(name)s”") % {"name": name} if name else _now("one process")
    return {**_amounts(params), "process": process}


TEXTS: dict[StrEnum, Text] = {
    ShareCode.OVER: Text(
        _("The workspace uses %(used)s GiB on %(device)s, above its limit of %(part)s GiB."),
        _("Free GPU memory now. %(follows)s"),
        _format_overuse,
    ),
    ShareCode.ASKED: Text(
        _(
            "The node asked %(process)s to exit: the workspace used %(used)s GiB on %(device)s, above its "
            "limit of %(part)s GiB."
        ),
        _USE_LESS,
        _format_ended_process,
    ),
    ShareCode.KILLED: Text(
        _(
            "The node killed %(process)s: the workspace used %(used)s GiB on %(device)s, above its limit "
            "of %(part)s GiB."
        ),
        _USE_LESS,
        _format_ended_process,
    ),
    ShareCode.BACK: Text(
        _("The workspace is within its limit again, with %(used)s of %(part)s GiB on %(device)s."),
        prepare=_amounts,
    ),
    ShareCode.UNKNOWN: Text(
        _("The limit on %(device)s is not enforced: its driver does not report the memory of processes."),
        _("Stay within your share, or choose a whole GPU."),
    ),
}
