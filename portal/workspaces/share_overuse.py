"""Overuse of GPU shares by a workspace, as its node's guard reports, for its page and REST.

`WorkspaceStatus.gpu_shares` has, for the start of that `generation`, the last step on each device (`devices`)
by UUID. `notified_at` and `notified` are for its writer (`gpu_checks.share_notes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.workspaces.codes import ShareCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

SHOWN_FOR = timedelta(minutes=2)
"""Time after the last report, because a silent node does not report the end of an overuse either."""
OVER = frozenset({ShareCode.OVER, ShareCode.ASKED, ShareCode.KILLED})
RUNS = frozenset({State.PROVISIONING, State.RUNNING, State.STOPPING})


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A device on which it exceeds its share, or on which its use is unknown. Amounts are in MiB.

    `ends_at` is when a process may be ended; `None` if that has begun or will not happen.
    """

    device: str
    code: ShareCode
    message: str
    next_action: str
    used_mib: int
    part_mib: int
    since: datetime
    ends_at: datetime | None

    @property
    def known(self) -> bool:
        return self.code is not ShareCode.UNKNOWN


def overuse_rows(workspace: Workspace, now: datetime) -> list[ShareRow]:
    """Return the overuse to show for a workspace now, by device."""
    shares: Mapping[str, Any] = workspace.status.gpu_shares
    if not shares or shares.get("generation") != workspace.generation or workspace.state not in RUNS:
        return []
    rows = []
    for uuid, seen in sorted(shares.get("devices", {}).items()):
        code = ShareCode(seen["code"])
        lasts = code is ShareCode.UNKNOWN or datetime.fromisoformat(seen["at"]) > now - SHOWN_FOR
        if code is ShareCode.BACK or not lasts:
            continue
        reason = Reason(code, seen["params"])
        ends_at = datetime.fromisoformat(seen["ends_at"]) if seen.get("ends_at") else None
        rows.append(
            ShareRow(
                device=uuid,
                code=code,
                message=message_of(reason),
                next_action=next_action_of(reason),
                used_mib=seen["params"]["used_mib"],
                part_mib=seen["params"]["part_mib"],
                since=datetime.fromisoformat(seen["since"]),
                ends_at=ends_at,
            )
        )
    return rows
