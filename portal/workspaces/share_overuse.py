"""How a workspace overuses its GPU shares, as reported by its node's guard, for its page and REST.

`WorkspaceStatus.gpu_shares` has the `generation` of a start and its last step on each device (`devices`), by
UUID. `notified_at` and `notified` are for the code that writes it (`gpu_checks.share_notes`).
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
"""Time after the last report until overuse is hidden, because a silent node cannot report its end."""
OVER = frozenset({ShareCode.OVER, ShareCode.ASKED, ShareCode.KILLED})
RUNS = frozenset({State.PROVISIONING, State.RUNNING, State.STOPPING})


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A device on which the workspace exceeds its share, or its use is unknown. Amounts are in MiB.

    `ends_at` is when the node may end a process; `None` if it has begun to, or will not.
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
