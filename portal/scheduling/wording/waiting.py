"""Texts about expected starts, turns of members, and why workspaces wait."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.catalog.environments.codes import EnvironmentCode
from portal.common.formatting import format_clock
from portal.common.reasons.codes import Rule
from portal.common.reasons.wording import Params, Text
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import MemberOrderCode, WaitBasis
from portal.workspaces.lifecycle import QueueOutcome


def _silence(params: Params) -> Params:
    """Return the params with “no contact with DGX since 10:12 UTC”."""
    if not params["since"]:
        return {"silence": gettext("no contact with %(name)s") % {"name": params["name"]}}
    since = format_clock(datetime.fromisoformat(params["since"]), timezone.now())
    text = gettext("no contact with %(name)s since %(time)s")
    return {"silence": text % {"name": params["name"], "time": since}}


TEXTS: dict[StrEnum, Text] = {
    WaitBasis.ENOUGH_FREE: Text(_("enough capacity is free")),
    WaitBasis.EXPECTED_ENDS: Text(
        ngettext_lazy(
            "estimate, if %(running)s running workload ends on time",
            "estimate, if %(running)s running workloads end on time",
            "running",
        )
    ),
    WaitBasis.TOO_FAR_AHEAD: Text(_("too far ahead for an estimate")),
    WaitBasis.NO_ROOM_ON_NODES: Text(_("no capacity within the period of the estimate")),
    MemberOrderCode.USED_LESS: Text(_("Ahead of %(member)s’s next request: your recent usage is lower.")),
    MemberOrderCode.USED_MORE: Text(_("Behind %(member)s’s next request: your recent usage is higher.")),
    WaitBasis.MAINTENANCE_ENDS: Text(_("not before the planned end of maintenance")),
    WaitBasis.NO_CONTACT: Text(_("start time unknown: %(silence)s"), prepare=_silence),
    WaitBasis.LIMIT_MUST_CHANGE: Text(_("not before a limit changes (%(rule)s)")),
}

WAITING_LABELS: dict[str, str | Promise] = {
    "": _("Checking…"),
    QueueOutcome.NEEDS_APPROVAL: _("Needs approval"),
    Rule.CAPACITY: _("No free capacity"),
    Rule.PLACEMENT: _("No suitable node free"),
    Rule.ORDER: _("Held for requests ahead in the queue"),
    Rule.TEAM_LIMIT: _("Team quota in use"),
    Rule.COHORT: _("Borrowing limit reached"),
    Rule.SITE_LIMIT: _("Site limit reached"),
    Rule.USER_CAP: _("Limit of a member reached"),
    Rule.LEDGER: _("No GPU-hours left"),
    Rule.BOOKING: _("Reserved for other teams"),
    AdmissionCode.HOME_LOST: _("Home folder lost"),
    AdmissionCode.HOME_MOVING: _("Home folder is moving"),
    AdmissionCode.HOME_ARCHIVED: _("Home folder is being archived or restored"),
    AdmissionCode.HOME_AWAY: _("Home folder is archived"),
    AdmissionCode.LOOKED_AT_AGAIN: _("Checking…"),
    AdmissionCode.BUDGET_SPENT: _("Budget spent"),
    AdmissionCode.POOL_MAINTENANCE: _("Pool in maintenance"),
    AdmissionCode.SITE_MAINTENANCE: _("Site in maintenance"),
    EnvironmentCode.BEING_INSTALLED: _("Environment is being built"),
    EnvironmentCode.ON_ITS_WAY: _("Environment is being copied"),
    EnvironmentCode.NOT_INSTALLED: _("Environment could not be built"),
    EnvironmentCode.FOLDER_NOT_THERE: _("Folder of an environment is missing"),
}
"""Why pending workspaces wait, by reason code, without numbers and names.

Pages show the resource and the team after the text.
"""
OTHER_LABEL = _("Other reasons")
