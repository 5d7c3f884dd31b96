"""Every code that a `Reason` may have, one enumeration for each subject; `wording` has its text."""

from __future__ import annotations

from portal.common.reasons.codes.catalog import SiteCode as SiteCode
from portal.common.reasons.codes.common import CommonCode as CommonCode
from portal.common.reasons.codes.scheduling import RebalanceCode as RebalanceCode
from portal.common.reasons.codes.scheduling import Rule as Rule
from portal.common.reasons.codes.workspaces import EfficiencyCode as EfficiencyCode
from portal.common.reasons.codes.workspaces import LifetimeCode as LifetimeCode
