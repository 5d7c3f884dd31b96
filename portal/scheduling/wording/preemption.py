"""Texts: why a workspace is preempted."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.engine.model import PreemptionCode

TEXTS: dict[StrEnum, Text] = {
    PreemptionCode.IN_TEAM: Text(_("a request of its team with a higher priority needs the place")),
    PreemptionCode.RECLAIM: Text(_("the team that owns the quota which it had borrowed needs it back")),
    PreemptionCode.FAIR_SHARE: Text(_("another team, which has borrowed less, needs a part of it")),
    PreemptionCode.RESERVATION_BEGUN: Text(_("its capacity is booked for another team from now on")),
}
