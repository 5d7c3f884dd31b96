"""Texts about programs that were ended for lack of memory."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_memory, format_number
from portal.common.reasons.wording import Params, Text
from portal.workspaces.codes import MemoryCode


def _ended(params: Params) -> Params:
    """Return the limit and the ended programs as text."""
    count, name = int(params["count"]), params["process"]
    if count == 1:
        programs = gettext("“%(name)s”") % {"name": name} if name else gettext("a program")
    else:
        programs = ngettext("%(count)s program", "%(count)s programs", count) % {
            "count": format_number(count)
        }
        if name:
            programs = gettext("%(programs)s, the last was “%(name)s”") % {"programs": programs, "name": name}
    return {"limit": format_memory(params["limit_mib"]), "programs": programs}


TEXTS: dict[StrEnum, Text] = {
    MemoryCode.LIMIT: Text(
        _("This workspace used all of its %(limit)s of memory. The system ended %(programs)s."),
        _("Its unsaved results are lost. Restart it with less data, or choose a larger size."),
        _ended,
    ),
    MemoryCode.MACHINE: Text(
        _(
            "The node ran out of memory. The system ended %(programs)s, although this workspace "
            "stayed within its %(limit)s."
        ),
        _("Its unsaved results are lost. Restart it. If this happens again, ask an operator."),
        _ended,
    ),
}
