"""Texts that explain why a workspace is preempted."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Text
from portal.scheduling.engine.model import PreemptionCode

TEXTS: dict[StrEnum, Text] = {
    PreemptionCode.IN_TEAM: Text(_("a higher-priority request from the same team needs the capacity")),
    PreemptionCode.RECLAIM: Text(_("the team that lent the quota needs it back")),
    PreemptionCode.FAIR_SHARE: Text(_("another team that has borrowed less needs capacity")),
    PreemptionCode.RESERVATION_BEGUN: Text(_("its capacity is now reserved for another team")),
}
