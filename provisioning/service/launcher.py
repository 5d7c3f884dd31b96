"""Becomes a service that ends when the supervisor does: `launcher.py PARENT_PID SIGNAL PROGRAM ARG…`.

Run as `python -I -S launcher.py`, so that it costs some ten milliseconds. A hook between fork and exec
would do the same without a second exec, and is unsafe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    parent, signal_number = int(argv[0]), int(argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # The supervisor died before the line above.
    try:
        os.execvp(argv[2], argv[2:])  # noqa: S606  (that is what it is for)
    except OSError as error:
        sys.exit(f"{argv[2]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
