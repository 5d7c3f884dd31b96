"""Records why the portal stopped a workspace, in `WorkspaceStatus.stopped`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, reason_of


@dataclass(frozen=True, slots=True)
class StopRule:
    """The rule that stopped a workspace: its name (`idle_s`) and where it is set (`team:vision`)."""

    name: str
    set_by: str


@dataclass(frozen=True, slots=True)
class StopCause:
    """Why and when the portal stopped a workspace. `rule` and `set_by` are empty without a rule."""

    code: str
    message: str
    rule: str
    set_by: str
    at: datetime


def stored_cause(reason: Reason | None, rule: StopRule | None, at: datetime) -> dict[str, Any]:
    """Return the cause in stored form; empty if a person stopped it."""
    if reason is None:
        return {}
    params = {"rule": rule.name, "set_by": rule.set_by} if rule is not None else {}
    return {**reason.as_json(), **params, "at": at.isoformat()}


def cause_of(stored: Mapping[str, Any]) -> StopCause | None:
    """Return the cause from its stored form, or None."""
    reason = reason_of(stored)
    if reason is None:
        return None
    return StopCause(
        code=str(reason.code),
        message=message_of(reason),
        rule=str(stored.get("rule", "")),
        set_by=str(stored.get("set_by", "")),
        at=datetime.fromisoformat(stored["at"]),
    )
