"""Waits until a service answers: `python -m portal.embedded.ready PORT`.

For systemd units whose program cannot report when it is ready, so that the front door starts later.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from portal.common.front_door import LIVE_PATH
from provisioning.service.probes import http_status

LIMIT_S = 60.0
POLL_S = 0.2


def main(argv: Sequence[str], *, limit_s: float = LIMIT_S) -> int:
    """Return 0 once the service on this machine's port answers, or 1 after `limit_s`."""
    port, deadline = int(argv[0]), time.monotonic() + limit_s
    while http_status(port, LIVE_PATH) != 200:
        if time.monotonic() > deadline:
            print(f"no answer on port {port} within {limit_s:.0f} s", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
