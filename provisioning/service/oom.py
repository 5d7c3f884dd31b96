"""Who goes first where the machine's memory runs out: services before what starts them again.

The kernel ends the process with the largest sum of its size and its score (`oom_score_adj`). Where something
else takes the memory bit by bit and all services have been ended once, the supervisor is the largest that is
left. Without it nothing is started again, and all that it has started ends too.
"""

from __future__ import annotations

from pathlib import Path

SUPERVISOR_LOWER = 500
"""How far below its services a supervisor is that may say so: one with `CAP_SYS_RESOURCE`."""
SERVICES_HIGHER = 50
"""How far above their supervisor services are where it may not; workspaces have 100 and more."""
LOWEST, HIGHEST = -1000, 1000
OWN = Path("/proc/self/oom_score_adj")


def spare_supervisor() -> int | None:
    """Put this process below what it starts from now on; the score for that. None: there are no scores."""
    try:
        own = int(OWN.read_text())
        try:
            OWN.write_text(str(max(own - SUPERVISOR_LOWER, LOWEST)))
        except OSError:
            return min(own + SERVICES_HIGHER, HIGHEST)
    except (OSError, ValueError):
        return None
    return own
