from __future__ import annotations

from enum import StrEnum

from portal.common.reasons.wording import Text

TEXTS: dict[StrEnum, Text] = {}
