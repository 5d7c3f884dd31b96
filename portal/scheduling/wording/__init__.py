"""Texts of verdicts, of placement, of expected starts and of preemption."""

from __future__ import annotations

from portal.scheduling.wording import admission, moves, placement, preemption, waiting

TEXTS = {**placement.TEXTS, **admission.TEXTS, **waiting.TEXTS, **preemption.TEXTS, **moves.TEXTS}
