"""Result of a GPU reset; `reset_run` performs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from provisioning.types import Name, Text

MAX_OUTPUT = 1000


class ResetVerdict(StrEnum):
    """`refused` changed nothing; after `failed` and `hung` only a reboot helps."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class ResetResult:
    """Result of a reset. `text` is a sentence, with the next action if there is one."""

    uuid: Name
    verdict: ResetVerdict
    text: Text
    output: Annotated[str, Meta(max_length=MAX_OUTPUT)] = ""
    simulated: bool = False
