"""Executes the bundled Redis-compatible server: `python -m portal.embedded.redis_server ARGUMENT…`.

For systemd units, which need absolute paths, because the server's path depends on the Python installation.
"""

from __future__ import annotations

import os
import sys

from portal.embedded import preflight
from provisioning.service.console import Console, Problem


def main(arguments: list[str]) -> None:
    """Execute the server. Exits with 1 if it is missing."""
    try:
        program = str(preflight.find_binaries().redis_server)
    except Problem as problem:
        Console().complain(problem)
        raise SystemExit(1) from None
    os.execv(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
