"""Texts of verdicts, placement, expected starts and preemption."""

from __future__ import annotations

from portal.scheduling.wording import admission, moves, placement, preemption, waiting

TEXTS = {**placement.TEXTS, **admission.TEXTS, **waiting.TEXTS, **preemption.TEXTS, **moves.TEXTS}
