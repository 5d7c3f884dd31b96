"""Texts: the basis of an expected start, turns of members, and reasons of waiting in a few words."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
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
    WaitBasis.EXPECTED_ENDS: Text(_("estimate, if %(running)s running workloads end on time")),
    WaitBasis.TOO_FAR_AHEAD: Text(_("too far ahead for an estimate")),
    WaitBasis.NO_ROOM_ON_NODES: Text(_("no capacity within the period of the estimate")),
    MemberOrderCode.USED_LESS: Text(_("Before %(member)s’s next request: you used less recently.")),
    MemberOrderCode.USED_MORE: Text(_("After %(member)s’s next request: you used more recently.")),
    WaitBasis.MAINTENANCE_ENDS: Text(_("not before the planned end of maintenance")),
    WaitBasis.NO_CONTACT: Text(_("start time unknown: %(silence)s"), prepare=_silence),
    WaitBasis.LIMIT_MUST_CHANGE: Text(_("not before a limit changes (%(rule)s)")),
}

WAITING_LABELS: dict[str, str | Promise] = {
    "": _("Not decided yet"),
    QueueOutcome.NEEDS_APPROVAL: _("Approval"),
    Rule.CAPACITY: _("Free capacity"),
    Rule.PLACEMENT: _("A suitable node"),
    Rule.ORDER: _("Earlier requests"),
    Rule.TEAM_LIMIT: _("Team quota"),
    Rule.COHORT: _("Shared quota of a cohort"),
    Rule.SITE_LIMIT: _("Site limit"),
    Rule.USER_CAP: _("Limit per member"),
    Rule.LEDGER: _("GPU-hours"),
    Rule.BOOKING: _("A reservation"),
    AdmissionCode.HOME_LOST: _("A new home folder"),
    AdmissionCode.HOME_MOVING: _("A home folder that is being moved"),
    AdmissionCode.HOME_ARCHIVED: _("A home folder that is being archived"),
    AdmissionCode.HOME_AWAY: _("A home folder on another node"),
    AdmissionCode.LOOKED_AT_AGAIN: _("Another check"),
    AdmissionCode.BUDGET_SPENT: _("Budget"),
    EnvironmentCode.BEING_INSTALLED: _("An environment that is being built"),
    EnvironmentCode.ON_ITS_WAY: _("An environment that is being copied"),
    EnvironmentCode.NOT_INSTALLED: _("An environment whose build failed"),
    EnvironmentCode.FOLDER_NOT_THERE: _("A folder of an environment"),
}
"""What pending workspaces wait for, by the code of their reason, without numbers and names."""
OTHER_LABEL = _("Other reasons")
