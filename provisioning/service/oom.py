"""Order of OOM kills: services before their supervisor.

The kernel kills the process with the highest sum of its size and its score (`oom_score_adj`). If something
else gradually uses up the memory and all services have been killed once, the supervisor would be the largest
process left. Without it nothing is restarted, and everything that it started ends too.
"""

from __future__ import annotations

from pathlib import Path

SUPERVISOR_LOWER = 500
"""How much lower than its services a privileged supervisor (`CAP_SYS_RESOURCE`) scores itself."""
SERVICES_HIGHER = 50
"""How much higher services score if the supervisor is not privileged; workspaces have 100 and more."""
LOWEST, HIGHEST = -1000, 1000
OWN = Path("/proc/self/oom_score_adj")


def spare_supervisor() -> int | None:
    """Lower this process's score and return the score for its children; None if scores are unavailable."""
    try:
        own = int(OWN.read_text())
        try:
            OWN.write_text(str(max(own - SUPERVISOR_LOWER, LOWEST)))
        except OSError:
            return min(own + SERVICES_HIGHER, HIGHEST)
    except (OSError, ValueError):
        return None
    return own
