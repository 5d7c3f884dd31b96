"""Every code that a `Reason` may have, one enumeration for each subject; `wording` has its text."""

from __future__ import annotations

from portal.common.reasons.codes.common import CommonCode as CommonCode
from portal.common.reasons.codes.scheduling import Rule as Rule
