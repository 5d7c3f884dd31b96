"""Becomes the bundled Redis-compatible server: `python -m portal.embedded.redis_server ARGUMENT…`.

For units of systemd, which name a program by its whole path: where this one lies depends on the Python.
"""

from __future__ import annotations

import os
import sys

from portal.embedded import preflight
from provisioning.service.console import Console, Problem


def main(arguments: list[str]) -> None:
    """Does not return, unless there is none."""
    try:
        program = str(preflight.find_binaries().redis_server)
    except Problem as problem:
        Console().complain(problem)
        raise SystemExit(1) from None
    os.execv(program, [program, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
