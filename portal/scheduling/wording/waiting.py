"""Texts: the basis of an expected start, and turns of members."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.engine.codes import MemberOrderCode, WaitBasis

TEXTS: dict[StrEnum, Text] = {
    WaitBasis.ENOUGH_FREE: Text(_("enough capacity is free")),
    WaitBasis.EXPECTED_ENDS: Text(_("estimate, if %(running)s running workloads end on time")),
    WaitBasis.TOO_FAR_AHEAD: Text(_("too far ahead for an estimate")),
    WaitBasis.NO_ROOM_ON_NODES: Text(_("no capacity within the period of the estimate")),
    MemberOrderCode.USED_LESS: Text(_("Before %(member)s’s next request: you used less recently.")),
    MemberOrderCode.USED_MORE: Text(_("After %(member)s’s next request: you used more recently.")),
    WaitBasis.MAINTENANCE_ENDS: Text(_("not before the planned end of maintenance")),
    WaitBasis.LIMIT_MUST_CHANGE: Text(_("not before a limit changes (%(rule)s)")),
}
